// Operators on values, with Python's meaning.
#pragma once

#include <optional>

#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"

namespace text::jinja {

// Errors: kInvalidArgument as Python's TypeError or ZeroDivisionError; kUnsupported for integers
// beyond 64 bits.
base::Result<Value> apply_binary(Runtime& runtime, Op op, const Value& a, const Value& b);
base::Result<Value> apply_unary(Op op, const Value& a);
base::Result<bool> apply_compare(Runtime& runtime, Op op, const Value& a, const Value& b);
// value[begin:end:step]; a bound that was not given is none.
base::Result<Value> slice(Runtime& runtime, const Value& value, const Value (&bounds)[3]);

}  // namespace text::jinja
