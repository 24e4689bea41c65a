// Attributes, items, membership, argument matching and the functions of the environment.
#include <ctime>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace text::jinja {

using base::Code;

namespace {

using Answer = base::Result<Value>;

constexpr int64_t kRangeMax = 100'000;  // as the sandbox has it

const Value* find_name(const Namespace& names, std::string_view name) {
  for (const auto& [key, value] : names.items) {
    if (key == name) return &value;
  }
  return nullptr;
}

Answer loop_cycle(Runtime&, const Value& self, const Args& args) {
  if (args.positional.empty())
    return base::error(Code::kInvalidArgument, "no items for cycling given");
  const auto count = static_cast<int64_t>(args.positional.size());
  return args.positional[static_cast<size_t>(self.loop().index % count)];
}

Answer loop_changed(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(Value now, make_list(&runtime.meter, args.positional, List::Flavor::kTuple));
  Loop& loop = self.loop();
  if (loop.has_changed) {
    ASSIGN_OR_RETURN(const bool same, equal(runtime.meter, loop.last_changed, now));
    if (same) return Value::boolean(false);
  }
  loop.has_changed = true;
  loop.last_changed = std::move(now);
  return Value::boolean(true);
}

Answer bind_method(Runtime& runtime, const Value& self, Builtin function, std::string_view name) {
  auto object = std::make_shared<Callable>();
  object->name = name;
  object->function = function;
  object->self = self;
  object->depth = self.depth() + 1;
  RETURN_IF_ERROR(charge(&runtime.meter, *object, 0));
  return Value(Kind::kCallable, std::move(object));
}

Answer loop_attribute(Runtime& runtime, const Value& self, std::string_view name) {
  const Loop& loop = self.loop();
  const auto length = static_cast<int64_t>(loop.items->size());
  if (name == "index") return Value::integer(loop.index + 1);
  if (name == "index0") return Value::integer(loop.index);
  if (name == "revindex") return Value::integer(length - loop.index);
  if (name == "revindex0") return Value::integer(length - loop.index - 1);
  if (name == "first") return Value::boolean(loop.index == 0);
  if (name == "last") return Value::boolean(loop.index + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "depth") return Value::integer(loop.level);
  if (name == "depth0") return Value::integer(loop.level - 1);
  if (name == "previtem") {
    if (loop.index == 0) return make_undefined("there is no previous item");
    return (*loop.items)[static_cast<size_t>(loop.index - 1)];
  }
  if (name == "nextitem") {
    if (loop.index + 1 >= length) return make_undefined("there is no next item");
    return (*loop.items)[static_cast<size_t>(loop.index + 1)];
  }
  if (name == "cycle") return bind_method(runtime, self, loop_cycle, name);
  if (name == "changed") return bind_method(runtime, self, loop_changed, name);
  return make_undefined(fmt::format("a loop has no attribute '{}'", name.substr(0, 60)));
}

Value missing(const Value& value, std::string_view name) {
  return make_undefined(
      fmt::format("'{} object' has no attribute '{}'", type_name(value), name.substr(0, 60)));
}

// What value[key] finds as Python does it, or null.
base::Result<const Value*> subscript(Runtime& runtime, const Value& value, const Value& key) {
  const Value* nothing = nullptr;
  if (value.is(Kind::kDict)) {
    auto found = find_key(runtime.meter, value.dict(), key);
    if (!found.ok() && found.error().code != Code::kTooLarge) return nothing;
    return found;
  }
  const bool indexable = value.is(Kind::kList) && value.list().flavor <= List::Flavor::kRange;
  if (!indexable || !key.is_integral()) return nothing;
  const auto& items = value.list().items;
  const auto length = static_cast<int64_t>(items.size());
  const int64_t index = key.as_int() < 0 ? key.as_int() + length : key.as_int();
  if (index < 0 || index >= length) return nothing;
  return &items[static_cast<size_t>(index)];
}

}  // namespace

base::Error undefined_error(const Value& undefined) {
  if (undefined.object() == nullptr)
    return base::error(Code::kInvalidArgument, "a value is undefined");
  return base::error(Code::kInvalidArgument, "{}",
                     static_cast<const String*>(undefined.object())->text);
}

base::Result<Value> get_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  RETURN_IF_ERROR(spend(runtime.meter, 8));
  if (value.is_undefined()) return undefined_error(value);
  if (value.is(Kind::kLoop)) return loop_attribute(runtime, value, name);
  if (value.is(Kind::kNamespace)) {
    const Value* found = find_name(value.names(), name);
    return found != nullptr ? *found : missing(value, name);
  }
  if (name == "name" && value.is(Kind::kCallable) && value.callable().macro != nullptr) {
    return make_string(&runtime.meter, value.callable().name);
  }
  ASSIGN_OR_RETURN(Value method, find_method(runtime, value, name));
  if (!method.is_undefined() || method.object() != nullptr) return method;
  if (value.is(Kind::kDict)) {
    const Value* found = find_key(runtime.meter, value.dict(), name);
    if (found != nullptr) return *found;
  }
  return missing(value, name);
}

base::Result<Value> get_item(Runtime& runtime, const Value& value, const Value& key) {
  RETURN_IF_ERROR(spend(runtime.meter, 8));
  if (value.is_undefined()) return undefined_error(value);
  if (value.is_string() && key.is_integral()) {
    const String& text = value.string();
    const int64_t index = key.as_int() < 0 ? key.as_int() + text.num_chars : key.as_int();
    if (index < 0 || index >= text.num_chars) return make_undefined("string index out of range");
    const bool ascii = text.num_chars == static_cast<int64_t>(text.text.size());
    if (!ascii) RETURN_IF_ERROR(spend(runtime.meter, index));
    const size_t at = ascii ? static_cast<size_t>(index) : char_offset(text.text, index);
    const size_t size = char_size(std::string_view(text.text).substr(at));
    return make_string(&runtime.meter, text.text.substr(at, size));
  }
  ASSIGN_OR_RETURN(const Value* found, subscript(runtime, value, key));
  if (found != nullptr) return *found;
  if (!key.is_string()) {
    return make_undefined(fmt::format("'{}' object has no such element", type_name(value)));
  }
  ASSIGN_OR_RETURN(Value method, find_method(runtime, value, key.text()));
  if (!method.is_undefined() || method.object() != nullptr) return method;
  if (value.is(Kind::kNamespace) || value.is(Kind::kLoop))
    return get_attribute(runtime, value, key.text());
  return missing(value, key.text());
}

base::Result<Value> get_path(Runtime& runtime, const Value& value, const Value& path) {
  if (path.is(Kind::kInt)) return get_item(runtime, value, path);
  if (!path.is_string())
    return base::error(Code::kInvalidArgument, "an attribute must be a str, not '{}'",
                       type_name(path));
  Value current = value;
  for (const std::string_view part : split(path.text(), ".", -1)) {
    const bool number = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string_view::npos;
    Value key = Value::integer(number ? std::stol(std::string(part)) : 0);
    if (!number) {
      ASSIGN_OR_RETURN(key, make_string(&runtime.meter, std::string(part)));
    }
    ASSIGN_OR_RETURN(current, get_item(runtime, current, key));
  }
  return current;
}

base::Result<Value> contains(Runtime& runtime, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (item.is_undefined() || !item.is_string()) {
        return base::error(Code::kInvalidArgument,
                           "'in <string>' requires string as left operand, not {}",
                           type_name(item));
      }
      RETURN_IF_ERROR(
          spend(runtime.meter, static_cast<int64_t>(container.text().size() + item.text().size())));
      return Value::boolean(find(container.text(), item.text()) != std::string_view::npos);
    case Kind::kDict: {
      ASSIGN_OR_RETURN(const Value* found, find_key(runtime.meter, container.dict(), item));
      return Value::boolean(found != nullptr);
    }
    case Kind::kUndefined:
      return Value::boolean(false);
    case Kind::kList:
      if (container.list().consumed) return Value::boolean(false);
      for (const Value& element : container.list().items) {
        ASSIGN_OR_RETURN(const bool same, equal(runtime.meter, element, item));
        if (same) return Value::boolean(true);
      }
      if (container.list().flavor == List::Flavor::kGenerator) container.list().consumed = true;
      return Value::boolean(false);
    default:
      return base::error(Code::kInvalidArgument, "argument of type '{}' is not iterable",
                         type_name(container));
  }
}

base::Result<Bound> Bound::match(std::string_view function, const Args& args,
                                 std::initializer_list<std::string_view> names, size_t required) {
  Bound bound;
  bound.function_ = function;
  bound.values_.resize(names.size(), nullptr);
  if (args.positional.size() > names.size()) {
    return base::error(Code::kInvalidArgument, "{}: too many arguments", function);
  }
  for (size_t i = 0; i < args.positional.size(); ++i) bound.values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t index = 0;
    while (index < names.size() && names.begin()[index] != name) ++index;
    if (index == names.size() || bound.values_[index] != nullptr) {
      return base::error(Code::kInvalidArgument, "{}: unexpected argument '{}'", function, name);
    }
    bound.values_[index] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound.values_[i] == nullptr) {
      return base::error(Code::kInvalidArgument, "{}: missing argument '{}'", function,
                         names.begin()[i]);
    }
  }
  return bound;
}

base::Result<int64_t> Bound::integer(size_t index, int64_t otherwise) const {
  if (!has(index)) return otherwise;
  if (!values_[index]->is_integral()) {
    return base::error(Code::kInvalidArgument, "{}: expected int, got '{}'", function_,
                       type_name(*values_[index]));
  }
  return values_[index]->as_int();
}

base::Result<std::string_view> Bound::text(size_t index, std::string_view otherwise) const {
  if (!has(index)) return otherwise;
  if (!values_[index]->is_string()) {
    return base::error(Code::kInvalidArgument, "{}: expected str, got '{}'", function_,
                       type_name(*values_[index]));
  }
  return values_[index]->text();
}

namespace {

Answer make_range(Runtime& runtime, const Value&, const Args& args) {
  int64_t bounds[3] = {0, 0, 1};
  const size_t count = args.positional.size();
  if (count < 1 || count > 3 || !args.named.empty()) {
    return base::error(Code::kInvalidArgument, "range: expected 1 to 3 arguments");
  }
  for (size_t i = 0; i < count; ++i) {
    if (args.positional[i].is_undefined()) return undefined_error(args.positional[i]);
    if (!args.positional[i].is_integral()) {
      return base::error(Code::kInvalidArgument, "range: expected int, got '{}'",
                         type_name(args.positional[i]));
    }
    bounds[count == 1 ? 1 : i] = args.positional[i].as_int();
  }
  const auto [begin, end, step] = bounds;
  if (step == 0) return base::error(Code::kInvalidArgument, "range: the step must not be zero");
  std::vector<Value> items;
  for (__int128 at = begin; step > 0 ? at < end : at > end; at += step) {
    if (static_cast<int64_t>(items.size()) == kRangeMax) {
      return base::error(Code::kTooLarge, "range: more than {} items", kRangeMax);
    }
    items.push_back(Value::integer(static_cast<int64_t>(at)));
  }
  return make_list(&runtime.meter, std::move(items), List::Flavor::kRange);
}

// The items of dict(...) and namespace(...): a mapping or pairs, then named arguments.
base::Result<std::vector<std::pair<Value, Value>>> mapping_items(Runtime& runtime,
                                                                 const Args& args) {
  std::vector<std::pair<Value, Value>> items;
  if (args.positional.size() > 1)
    return base::error(Code::kInvalidArgument, "dict: expected at most 1 argument");
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is(Kind::kDict)) {
      RETURN_IF_ERROR(spend(runtime.meter, static_cast<int64_t>(source.dict().items.size() * 64)));
      items = source.dict().items;
    } else {
      ASSIGN_OR_RETURN(const auto pairs, iterate(runtime.meter, source));
      for (const Value& pair : pairs) {
        ASSIGN_OR_RETURN(auto parts, iterate(runtime.meter, pair));
        if (parts.size() != 2)
          return base::error(Code::kInvalidArgument, "dict: an element is not a pair");
        items.emplace_back(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) {
    ASSIGN_OR_RETURN(Value key, make_string(&runtime.meter, name));
    items.emplace_back(std::move(key), value);
  }
  return items;
}

Answer build_dict(Runtime& runtime, const Value&, const Args& args) {
  ASSIGN_OR_RETURN(auto items, mapping_items(runtime, args));
  Dict unique;
  for (auto& [key, value] : items) {
    ASSIGN_OR_RETURN(const Value* found, find_key(runtime.meter, unique, key));
    if (found != nullptr) {
      *const_cast<Value*>(found) = std::move(value);
    } else {
      unique.items.emplace_back(std::move(key), std::move(value));
    }
  }
  return make_dict(&runtime.meter, std::move(unique.items));
}

Answer build_namespace(Runtime& runtime, const Value&, const Args& args) {
  ASSIGN_OR_RETURN(auto items, mapping_items(runtime, args));
  auto object = std::make_shared<Namespace>();
  for (auto& [key, value] : items) {
    if (!key.is_string())
      return base::error(Code::kInvalidArgument, "namespace: a name is not a str");
    auto at = object->items.begin();
    while (at != object->items.end() && at->first != key.text()) ++at;
    if (at == object->items.end()) {
      object->items.emplace_back(std::string(key.text()), std::move(value));
    } else {
      at->second = std::move(value);
    }
    RETURN_IF_ERROR(spend(runtime.meter, static_cast<int64_t>(object->items.size())));
  }
  RETURN_IF_ERROR(
      charge(&runtime.meter, *object, static_cast<int64_t>(object->items.size() * 128)));
  runtime.namespaces.push_back(object);
  return Value(Kind::kNamespace, std::move(object));
}

Answer raise_exception(Runtime& runtime, const Value&, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("raise_exception", args, {"message"}, 1));
  ASSIGN_OR_RETURN(const std::string message, to_text(runtime.meter, *a[0]));
  return base::error(Code::kInvalidArgument, "{}", message);
}

Answer strftime_now(Runtime& runtime, const Value&, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("strftime_now", args, {"format"}, 1));
  ASSIGN_OR_RETURN(const std::string_view format, a.text(0, ""));
  const std::time_t now = runtime.now_unix_s;
  std::tm parts{};
  if (gmtime_r(&now, &parts) == nullptr)
    return base::error(Code::kInvalidArgument, "strftime_now: the time is out of range");
  Builder out(runtime.meter);
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out.add(format[i]);
      continue;
    }
    const bool bare = i + 1 < format.size() && format[i + 1] == '-';
    const size_t at = i + (bare ? 2 : 1);
    static constexpr std::string_view kKnown = "aAbBcdDeFHIjmMpSTuUwWxXyYZ%";
    if (at >= format.size() || kKnown.find(format[at]) == std::string_view::npos) {
      return base::error(Code::kUnsupported,
                         "strftime_now: the conversion in '{}' is not supported",
                         format.substr(i, 3));
    }
    char buffer[64];
    const std::string conversion(format.substr(i, at + 1 - i));
    out.add(
        std::string_view(buffer, std::strftime(buffer, sizeof buffer, conversion.c_str(), &parts)));
    i = at;
  }
  return std::move(out).finish();
}

// A joiner's state is a namespace: its separator, and whether it was called.
Answer joiner_call(Runtime& runtime, const Value& self, const Args&) {
  auto& items = self.names().items;
  if (items.size() == 1) {
    items.emplace_back("used", Value::boolean(true));
    return make_string(&runtime.meter, "");
  }
  return items[0].second;
}

Answer make_joiner(Runtime& runtime, const Value&, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("joiner", args, {"sep"}));
  ASSIGN_OR_RETURN(Value separator, make_string(&runtime.meter, ", "));
  if (a.has(0)) separator = *a[0];
  Args state;
  state.named.emplace_back("separator", std::move(separator));
  ASSIGN_OR_RETURN(const Value self, build_namespace(runtime, Value(), state));
  return bind_method(runtime, self, joiner_call, "joiner");
}

// A cycler's state: its items as one tuple, and the index of the current one.
Answer cycler_next(Runtime&, const Value& self, const Args&) {
  auto& state = self.names().items;
  const auto& items = state[0].second.list().items;
  const auto at = static_cast<size_t>(state[1].second.as_int());
  state[1].second = Value::integer(static_cast<int64_t>((at + 1) % items.size()));
  return items[at];
}

Answer make_cycler(Runtime& runtime, const Value&, const Args& args) {
  if (args.positional.empty() || !args.named.empty()) {
    return base::error(Code::kInvalidArgument, "cycler: expected at least one item");
  }
  Args state;
  ASSIGN_OR_RETURN(Value items, make_list(&runtime.meter, args.positional, List::Flavor::kTuple));
  state.named.emplace_back("items", std::move(items));
  state.named.emplace_back("at", Value::integer(0));
  ASSIGN_OR_RETURN(const Value self, build_namespace(runtime, Value(), state));
  ASSIGN_OR_RETURN(Value next, bind_method(runtime, self, cycler_next, "next"));
  Args cycler;
  cycler.named.emplace_back("next", std::move(next));
  return build_namespace(runtime, Value(), cycler);
}

}  // namespace

Builtin find_function(std::string_view name) {
  if (name == "range") return make_range;
  if (name == "dict") return build_dict;
  if (name == "namespace") return build_namespace;
  if (name == "raise_exception") return raise_exception;
  if (name == "strftime_now") return strftime_now;
  if (name == "joiner") return make_joiner;
  if (name == "cycler") return make_cycler;
  return nullptr;
}

}  // namespace text::jinja
