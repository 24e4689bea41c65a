// Filters, tests, methods and functions of the template language.
//
// Names are those of Jinja 3.1 and of Python's str, dict and list. What changes a value in place
// (append, pop, update) does not exist: chat templates are rendered in an immutable sandbox, where
// such a method is undefined.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace text::jinja {

struct Runtime {
  Meter meter;
  int64_t now_unix_s = 0;
  std::vector<std::shared_ptr<Object>>
      namespaces;  // all of them: cleared at the end, for they can hold each other
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

using Builtin = base::Result<Value> (*)(Runtime& runtime, const Value& self, const Args& args);

struct Callable : Object {
  std::string name;
  Builtin function = nullptr;  // called with `self`, or:
  Value self;
  const void* macro = nullptr;  // Stmt of a macro or call block, with the Scope around it
  void* scope = nullptr;
};

// Null when there is none of that name.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
Builtin find_function(std::string_view name);
// The method `name` of a value of `self`'s type, bound to it; undefined when there is none or it
// would change the value.
base::Result<Value> find_method(Runtime& runtime, const Value& self, std::string_view name);

// value.name and value[key]; undefined when absent. Errors: kInvalidArgument when `value` itself is
// undefined.
base::Result<Value> get_attribute(Runtime& runtime, const Value& value, std::string_view name);
base::Result<Value> get_item(Runtime& runtime, const Value& value, const Value& key);
// Looks up a.b.0 as map(attribute=...) does.
base::Result<Value> get_path(Runtime& runtime, const Value& value, const Value& path);
base::Result<Value> contains(Runtime& runtime, const Value& container, const Value& item);
base::Result<Value> format_printf(Runtime& runtime, std::string_view format, const Args& args);

// Takes the work of a walk over the characters of `text`: some ten times that of a copy.
inline base::Result<void> spend_chars(Runtime& runtime, std::string_view text) {
  return spend(runtime.meter, static_cast<int64_t>(text.size()) * 12);
}

base::Error undefined_error(const Value& undefined);
base::Result<std::string> escape_html(Meter& meter, std::string_view text);

// The arguments of a call matched to `names`; a null entry was not given. Errors: kInvalidArgument
// for too many, too few
// (`required` first ones) or unknown ones.
class Bound {
 public:
  static base::Result<Bound> match(std::string_view function, const Args& args,
                                   std::initializer_list<std::string_view> names,
                                   size_t required = 0);
  const Value* operator[](size_t index) const { return values_[index]; }
  bool has(size_t index) const { return values_[index] != nullptr; }
  // Typed access with a default. Errors: kInvalidArgument for another type.
  base::Result<int64_t> integer(size_t index, int64_t otherwise) const;
  base::Result<std::string_view> text(size_t index, std::string_view otherwise) const;
  bool flag(size_t index, bool otherwise) const {
    return has(index) ? truth(*values_[index]) : otherwise;
  }

 private:
  std::string_view function_;
  std::vector<const Value*> values_;
};

}  // namespace text::jinja
