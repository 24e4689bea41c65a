// What may stand after `is`.
#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace text::jinja {

using base::Code;

namespace {

using Answer = base::Result<Value>;

template <Kind kKind>
Answer is_kind(Runtime&, const Value& self, const Args&) {
  return Value::boolean(self.is(kKind));
}

Answer is_defined(Runtime&, const Value& self, const Args&) {
  return Value::boolean(!self.is_undefined());
}
Answer is_true(Runtime&, const Value& self, const Args&) {
  return Value::boolean(self.is(Kind::kBool) && self.as_bool());
}
Answer is_false(Runtime&, const Value& self, const Args&) {
  return Value::boolean(self.is(Kind::kBool) && !self.as_bool());
}
Answer is_number(Runtime&, const Value& self, const Args&) {
  return Value::boolean(self.is_number());
}

Answer is_iterable(Runtime&, const Value& self, const Args&) {
  return Value::boolean(self.is_undefined() || self.is_string() || self.is(Kind::kList) ||
                        self.is(Kind::kDict) || self.is(Kind::kLoop));
}

Answer is_sequence(Runtime&, const Value& self, const Args&) {
  const bool list = self.is(Kind::kList) && self.list().flavor <= List::Flavor::kRange;
  return Value::boolean(self.is_undefined() || self.is_string() || list || self.is(Kind::kDict));
}

Answer is_callable(Runtime&, const Value& self, const Args&) {
  return Value::boolean(self.is_undefined() || self.is(Kind::kCallable) || self.is(Kind::kLoop));
}

template <bool (*Is)(uint32_t), bool (*Other)(uint32_t)>
Answer is_cased(Runtime& runtime, const Value& self, const Args&) {
  ASSIGN_OR_RETURN(const std::string text, to_text(runtime.meter, self));
  RETURN_IF_ERROR(spend_chars(runtime, text));
  bool found = false;
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(char_size(rest))) {
    if (Other(first_char(rest))) return Value::boolean(false);
    found |= Is(first_char(rest));
  }
  return Value::boolean(found);
}

base::Result<const Value*> operand(const Args& args) {
  if (args.positional.size() != 1 || !args.named.empty()) {
    return base::error(Code::kInvalidArgument, "a test of one argument was given {}",
                       args.positional.size());
  }
  return &args.positional[0];
}

template <bool kEqual>
Answer is_equal(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Value* other, operand(args));
  ASSIGN_OR_RETURN(const bool same, equal(runtime.meter, self, *other));
  return Value::boolean(same == kEqual);
}

template <bool (*Accept)(int)>
Answer is_ordered(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Value* other, operand(args));
  if (self.is_undefined()) return undefined_error(self);
  if (other->is_undefined()) return undefined_error(*other);
  ASSIGN_OR_RETURN(const int order, compare(runtime.meter, self, *other));
  return Value::boolean(Accept(order));
}

bool less(int order) {
  return order < 0;
}
bool less_equal(int order) {
  return order <= 0;
}
bool greater(int order) {
  return order > 0;
}
bool greater_equal(int order) {
  return order >= 0;
}

Answer is_in(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Value* container, operand(args));
  return contains(runtime, *container, self);
}

Answer is_sameas(Runtime&, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Value* other, operand(args));
  if (self.kind() != other->kind()) return Value::boolean(false);
  if (self.is(Kind::kNone)) return Value::boolean(true);
  if (self.is_integral()) return Value::boolean(self.as_int() == other->as_int());
  return Value::boolean(self.object() != nullptr && self.object() == other->object());
}

base::Result<int64_t> remainder(const Value& self, int64_t divisor) {
  if (self.is_undefined()) return undefined_error(self);
  if (!self.is_integral() || divisor == 0 || divisor == -1) {
    if (divisor == -1 && self.is_integral()) return int64_t{0};
    return base::error(Code::kUnsupported, "the remainder of '{}' by {}", type_name(self), divisor);
  }
  return self.as_int() % divisor;
}

Answer is_odd(Runtime&, const Value& self, const Args&) {
  ASSIGN_OR_RETURN(const int64_t rest, remainder(self, 2));
  return Value::boolean(rest != 0);
}

Answer is_even(Runtime&, const Value& self, const Args&) {
  ASSIGN_OR_RETURN(const int64_t rest, remainder(self, 2));
  return Value::boolean(rest == 0);
}

Answer is_divisibleby(Runtime&, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Value* divisor, operand(args));
  if (!divisor->is_integral())
    return base::error(Code::kUnsupported, "divisibleby a '{}'", type_name(*divisor));
  ASSIGN_OR_RETURN(const int64_t rest, remainder(self, divisor->as_int()));
  return Value::boolean(rest == 0);
}

Answer is_escaped(Runtime&, const Value& self, const Args&) {
  return Value::boolean(self.is_string() && self.string().markup);
}

Answer is_filter(Runtime&, const Value& self, const Args&) {
  return Value::boolean(self.is_string() && find_filter(self.text()) != nullptr);
}

Answer is_test(Runtime&, const Value& self, const Args&) {
  return Value::boolean(self.is_string() && find_test(self.text()) != nullptr);
}

struct Entry {
  std::string_view name;
  Builtin function;
};

constexpr Entry kTests[] = {
    {"defined", is_defined},
    {"undefined", is_kind<Kind::kUndefined>},
    {"none", is_kind<Kind::kNone>},
    {"boolean", is_kind<Kind::kBool>},
    {"integer", is_kind<Kind::kInt>},
    {"float", is_kind<Kind::kFloat>},
    {"string", is_kind<Kind::kString>},
    {"mapping", is_kind<Kind::kDict>},
    {"true", is_true},
    {"false", is_false},
    {"number", is_number},
    {"iterable", is_iterable},
    {"sequence", is_sequence},
    {"callable", is_callable},
    {"lower", is_cased<is_lower, is_upper>},
    {"upper", is_cased<is_upper, is_lower>},
    {"equalto", is_equal<true>},
    {"eq", is_equal<true>},
    {"==", is_equal<true>},
    {"ne", is_equal<false>},
    {"!=", is_equal<false>},
    {"lt", is_ordered<less>},
    {"<", is_ordered<less>},
    {"lessthan", is_ordered<less>},
    {"le", is_ordered<less_equal>},
    {"<=", is_ordered<less_equal>},
    {"gt", is_ordered<greater>},
    {">", is_ordered<greater>},
    {"greaterthan", is_ordered<greater>},
    {"ge", is_ordered<greater_equal>},
    {">=", is_ordered<greater_equal>},
    {"in", is_in},
    {"sameas", is_sameas},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisibleby},
    {"escaped", is_escaped},
    {"filter", is_filter},
    {"test", is_test},
};

}  // namespace

Builtin find_test(std::string_view name) {
  for (const Entry& entry : kTests) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace text::jinja
