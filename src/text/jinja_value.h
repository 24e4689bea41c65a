// Values of the template language, with Python's meaning: what `==`, `str()`, truth and iteration
// do in Python.
//
// A Value is a small handle; strings, lists and dicts live in shared immutable objects. Only
// namespaces, loops, cyclers and joiners change after creation. Each object is charged to the Meter
// of its rendering and gives its bytes back when it dies, so a hostile template runs into a limit
// instead of the machine's memory. Nesting is bounded, so recursion over a value (printing,
// comparing, destroying) is too. Thread: values made by the parser (meter null) are read-only and
// shared; all others belong to one rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace text::jinja {

// Budgets of one rendering.
struct Meter {
  int64_t live_bytes = 0;
  int64_t live_bytes_max = 0;
  int64_t work = 0;  // about a byte looked at or copied
  int64_t work_max = 0;
  int64_t iterations = 0;
  int64_t iterations_max = 0;
  int32_t value_depth_max = 0;
};

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kDict,
  kNamespace,
  kCallable,
  kLoop,
};

struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object();

  Meter* meter = nullptr;
  int64_t bytes = 0;
  int32_t depth = 0;  // 1 + the deepest element
};

struct String;
struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

class Value {
 public:
  Value() = default;  // undefined
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_number() const { return is(Kind::kBool) || is(Kind::kInt) || is(Kind::kFloat); }
  bool is_integral() const { return is(Kind::kBool) || is(Kind::kInt); }

  // REQUIRES: the kind asked for.
  bool as_bool() const { return integer_ != 0; }
  int64_t as_int() const { return integer_; }  // also of a bool
  double as_real() const { return is(Kind::kFloat) ? real_ : static_cast<double>(integer_); }
  const String& string() const;
  std::string_view text() const;
  const List& list() const;
  const Dict& dict() const;
  Namespace& names() const;
  Callable& callable() const;
  Loop& loop() const;
  const Object* object() const { return object_.get(); }
  const std::shared_ptr<Object>& shared() const { return object_; }
  int32_t depth() const { return object_ ? object_->depth : 0; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kUndefined;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<Object> object_;  // of an undefined value: a String saying why, or nothing
};

struct String : Object {
  std::string text;       // valid UTF-8
  int64_t num_chars = 0;  // code points
  bool markup = false;    // made by `safe` or `escape`: `+` escapes the other side
};

struct List : Object {
  // What Python would have here; all hold their items.
  enum class Flavor : uint8_t { kList, kTuple, kRange, kView, kGenerator };
  std::vector<Value> items;
  Flavor flavor = Flavor::kList;
  mutable bool consumed = false;  // a generator gives its items once
};

struct Dict : Object {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion, keys unique
};

struct Namespace : Object {
  std::vector<std::pair<std::string, Value>> items;
};

struct Loop : Object {
  std::shared_ptr<Object> held;  // the List iterated over
  const std::vector<Value>* items = nullptr;
  int64_t index = 0;
  int32_t level = 1;
  Value last_changed;  // argument of the latest changed()
  bool has_changed = false;
  const void* node = nullptr;  // For node and scope of a recursive loop
  std::weak_ptr<void> scope;
};

// How messages name a value's type, as Python does.
std::string_view type_name(const Value& value);

bool truth(const Value& value);

// Creates values within the budgets of `meter`. A null meter (the parser) has no limits.
// Errors: kTooLarge.
base::Result<Value> make_string(Meter* meter, std::string text, bool markup = false);
base::Result<Value> make_list(Meter* meter, std::vector<Value> items,
                              List::Flavor flavor = List::Flavor::kList);
base::Result<Value> make_dict(Meter* meter, std::vector<std::pair<Value, Value>> items);
Value make_undefined(std::string reason);

// Takes `amount` from the work budget. Errors: kTooLarge.
base::Result<void> spend(Meter& meter, int64_t amount);
// Charges `object`'s estimated bytes and checks the nesting. Errors: kTooLarge.
base::Result<void> charge(Meter* meter, Object& object, int64_t bytes);

// Text that grows piece by piece and never beyond the memory budget. After an overflow it ignores
// further pieces.
class Builder {
 public:
  explicit Builder(Meter& meter) : meter_(meter) {}
  void add(std::string_view piece);
  void add(char c) { add(std::string_view(&c, 1)); }
  bool overflowed() const { return overflowed_; }
  // Errors: kTooLarge.
  base::Result<std::string> text() &&;
  base::Result<Value> finish(bool markup = false) &&;

 private:
  Meter& meter_;
  std::string text_;
  bool overflowed_ = false;
};

// Python's ==. Work is charged; an exceeded budget is an error.
base::Result<bool> equal(Meter& meter, const Value& a, const Value& b);
// Negative, zero or positive as a <, ==, > b. Errors: kInvalidArgument when Python has no order
// between the types.
base::Result<int> compare(Meter& meter, const Value& a, const Value& b);
// The value of `key`, or null. Errors: kInvalidArgument for a key that Python cannot hash.
base::Result<const Value*> find_key(Meter& meter, const Dict& dict, const Value& key);
const Value* find_key(Meter& meter, const Dict& dict, std::string_view key);

// The items that a for loop over `value` visits. Errors: kInvalidArgument when it is not iterable.
base::Result<std::vector<Value>> iterate(Meter& meter, const Value& value);

// Python's str() and repr(). Errors: kUnsupported for values whose Python text holds an address
// (functions, generators).
base::Result<std::string> to_text(Meter& meter, const Value& value);
base::Result<std::string> to_repr(Meter& meter, const Value& value);
std::string float_repr(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool indented = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
// Python's json.dumps. Errors: kInvalidArgument for what JSON cannot say.
base::Result<std::string> to_json(Meter& meter, const Value& value, const JsonStyle& style);

}  // namespace text::jinja
