#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "text/jinja_text.h"

namespace text::jinja {

using base::Code;

namespace {

constexpr int64_t kObjectBytes = 96;  // of a shared object, its control block and the allocator

base::Error too_large(std::string_view what) {
  return base::error(Code::kTooLarge, "the chat template exceeds its limit of {}", what);
}

}  // namespace

Object::~Object() {
  if (meter != nullptr) meter->live_bytes -= bytes;
}

Value Value::boolean(bool value) {
  Value result(Kind::kBool);
  result.integer_ = value ? 1 : 0;
  return result;
}

Value Value::integer(int64_t value) {
  Value result(Kind::kInt);
  result.integer_ = value;
  return result;
}

Value Value::real(double value) {
  Value result(Kind::kFloat);
  result.real_ = value;
  return result;
}

const String& Value::string() const {
  DCHECK(is_string());
  return static_cast<const String&>(*object_);
}
std::string_view Value::text() const {
  return string().text;
}
const List& Value::list() const {
  DCHECK(is(Kind::kList));
  return static_cast<const List&>(*object_);
}
const Dict& Value::dict() const {
  DCHECK(is(Kind::kDict));
  return static_cast<const Dict&>(*object_);
}
Namespace& Value::names() const {
  DCHECK(is(Kind::kNamespace));
  return static_cast<Namespace&>(*object_);
}
Loop& Value::loop() const {
  DCHECK(is(Kind::kLoop));
  return static_cast<Loop&>(*object_);
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kCallable:
      return "function";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kList:
      break;
  }
  switch (value.list().flavor) {
    case List::Flavor::kList:
      return "list";
    case List::Flavor::kTuple:
      return "tuple";
    case List::Flavor::kRange:
      return "range";
    case List::Flavor::kView:
      return "dict view";
    case List::Flavor::kGenerator:
      return "generator";
  }
  return "object";
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_real() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
      return value.list().flavor == List::Flavor::kGenerator || !value.list().items.empty();
    case Kind::kDict:
      return !value.dict().items.empty();
    case Kind::kLoop:
      return !value.loop().items->empty();
    case Kind::kNamespace:
    case Kind::kCallable:
      return true;
  }
  return false;
}

base::Result<void> spend(Meter& meter, int64_t amount) {
  meter.work += amount;
  if (meter.work > meter.work_max) return too_large("work");
  return {};
}

base::Result<void> charge(Meter* meter, Object& object, int64_t bytes) {
  if (meter == nullptr) return {};
  RETURN_IF_ERROR(spend(*meter, bytes));
  if (object.depth > meter->value_depth_max) return too_large("nesting");
  object.meter = meter;
  object.bytes = bytes + kObjectBytes;
  meter->live_bytes += object.bytes;
  if (meter->live_bytes > meter->live_bytes_max) return too_large("memory");
  return {};
}

base::Result<Value> make_string(Meter* meter, std::string text, bool markup) {
  auto object = std::make_shared<String>();
  object->num_chars = count_chars(text);
  object->text = std::move(text);
  object->markup = markup;
  RETURN_IF_ERROR(charge(meter, *object, static_cast<int64_t>(object->text.capacity())));
  return Value(Kind::kString, std::move(object));
}

base::Result<Value> make_list(Meter* meter, std::vector<Value> items, List::Flavor flavor) {
  auto object = std::make_shared<List>();
  object->flavor = flavor;
  for (const Value& item : items) object->depth = std::max(object->depth, item.depth() + 1);
  object->items = std::move(items);
  RETURN_IF_ERROR(
      charge(meter, *object, static_cast<int64_t>(object->items.capacity() * sizeof(Value))));
  return Value(Kind::kList, std::move(object));
}

base::Result<Value> make_dict(Meter* meter, std::vector<std::pair<Value, Value>> items) {
  auto object = std::make_shared<Dict>();
  for (const auto& [key, value] : items) {
    object->depth = std::max({object->depth, key.depth() + 1, value.depth() + 1});
  }
  object->items = std::move(items);
  const size_t bytes = object->items.capacity() * 2 * sizeof(Value);
  RETURN_IF_ERROR(charge(meter, *object, static_cast<int64_t>(bytes)));
  return Value(Kind::kDict, std::move(object));
}

Value make_undefined(std::string reason) {
  auto object = std::make_shared<String>();
  object->text = std::move(reason);
  return Value(Kind::kUndefined, std::move(object));
}

void Builder::add(std::string_view piece) {
  if (overflowed_) return;
  const auto size = static_cast<int64_t>(text_.size() + piece.size());
  if (meter_.live_bytes + size > meter_.live_bytes_max) {
    overflowed_ = true;
    return;
  }
  text_.append(piece);
}

base::Result<std::string> Builder::text() && {
  if (overflowed_) return too_large("memory");
  RETURN_IF_ERROR(spend(meter_, static_cast<int64_t>(text_.size())));
  return std::move(text_);
}

base::Result<Value> Builder::finish(bool markup) && {
  if (overflowed_) return too_large("memory");
  return make_string(&meter_, std::move(text_), markup);
}

namespace {

base::Result<bool> equal_items(Meter& meter, const std::vector<Value>& a,
                               const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSIGN_OR_RETURN(const bool same, equal(meter, a[i], b[i]));
    if (!same) return false;
  }
  return true;
}

base::Result<bool> equal_dicts(Meter& meter, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    ASSIGN_OR_RETURN(const Value* other, find_key(meter, b, key));
    if (other == nullptr) return false;
    ASSIGN_OR_RETURN(const bool same, equal(meter, value, *other));
    if (!same) return false;
  }
  return true;
}

}  // namespace

base::Result<bool> equal(Meter& meter, const Value& a, const Value& b) {
  RETURN_IF_ERROR(spend(meter, 8));
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_real() == b.as_real();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString: {
      if (a.text().size() != b.text().size()) return false;
      RETURN_IF_ERROR(spend(meter, static_cast<int64_t>(a.text().size())));
      return a.text() == b.text();
    }
    case Kind::kList: {
      if (a.object() == b.object()) return true;
      if (a.list().flavor != b.list().flavor) return false;
      if (a.list().flavor == List::Flavor::kGenerator) return false;
      return equal_items(meter, a.list().items, b.list().items);
    }
    case Kind::kDict:
      return equal_dicts(meter, a.dict(), b.dict());
    default:
      return a.object() == b.object();
  }
}

base::Result<int> compare(Meter& meter, const Value& a, const Value& b) {
  RETURN_IF_ERROR(spend(meter, 8));
  const auto order = [](auto x, auto y) { return x < y ? -1 : (y < x ? 1 : 0); };
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return order(a.as_int(), b.as_int());
    return order(a.as_real(), b.as_real());
  }
  if (a.is_string() && b.is_string()) {
    RETURN_IF_ERROR(spend(meter, static_cast<int64_t>(std::min(a.text().size(), b.text().size()))));
    return order(a.text(), b.text());  // the order of UTF-8 bytes is that of code points
  }
  const bool lists =
      a.is(Kind::kList) && b.is(Kind::kList) && a.list().flavor == b.list().flavor &&
      (a.list().flavor == List::Flavor::kList || a.list().flavor == List::Flavor::kTuple);
  if (!lists) {
    return base::error(Code::kInvalidArgument, "'{}' and '{}' cannot be ordered", type_name(a),
                       type_name(b));
  }
  const auto& x = a.list().items;
  const auto& y = b.list().items;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    ASSIGN_OR_RETURN(const bool same, equal(meter, x[i], y[i]));
    if (!same) return compare(meter, x[i], y[i]);
  }
  return order(x.size(), y.size());
}

namespace {

bool hashable(const Value& key) {
  if (key.is(Kind::kDict)) return false;
  if (!key.is(Kind::kList)) return true;
  const List& list = key.list();
  if (list.flavor == List::Flavor::kList || list.flavor == List::Flavor::kView) return false;
  return list.flavor != List::Flavor::kTuple ||
         std::all_of(list.items.begin(), list.items.end(), hashable);
}

}  // namespace

base::Result<const Value*> find_key(Meter& meter, const Dict& dict, const Value& key) {
  if (key.is_string()) {
    const Value* found = find_key(meter, dict, key.text());
    RETURN_IF_ERROR(spend(meter, 0));
    return found;
  }
  if (!hashable(key))
    return base::error(Code::kInvalidArgument, "unhashable type: '{}'", type_name(key));
  for (const auto& [name, value] : dict.items) {
    ASSIGN_OR_RETURN(const bool same, equal(meter, name, key));
    if (same) return &value;
  }
  return static_cast<const Value*>(nullptr);
}

const Value* find_key(Meter& meter, const Dict& dict, std::string_view key) {
  for (const auto& [name, value] : dict.items) {
    ++meter.work;
    if (!name.is_string() || name.text().size() != key.size()) continue;
    meter.work += static_cast<int64_t>(key.size());
    if (name.text() == key) return &value;
  }
  return nullptr;
}

base::Result<std::vector<Value>> iterate(Meter& meter, const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kList: {
      const List& list = value.list();
      if (list.consumed) return items;
      if (list.flavor == List::Flavor::kGenerator) list.consumed = true;
      RETURN_IF_ERROR(spend(meter, static_cast<int64_t>(list.items.size() * sizeof(Value))));
      return list.items;
    }
    case Kind::kDict:
      RETURN_IF_ERROR(
          spend(meter, static_cast<int64_t>(value.dict().items.size() * sizeof(Value))));
      for (const auto& [key, unused] : value.dict().items) items.push_back(key);
      return items;
    case Kind::kString: {
      std::string_view rest = value.text();
      while (!rest.empty()) {
        const size_t size = char_size(rest);
        ASSIGN_OR_RETURN(Value item, make_string(&meter, std::string(rest.substr(0, size))));
        items.push_back(std::move(item));
        rest.remove_prefix(size);
      }
      return items;
    }
    default:
      return base::error(Code::kInvalidArgument, "'{}' object is not iterable", type_name(value));
  }
}

}  // namespace text::jinja
