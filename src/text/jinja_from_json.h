// The caller's JSON as template values.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "text/jinja_value.h"

namespace text::jinja {

// Errors: kInvalidArgument (invalid UTF-8), kUnsupported (an integer beyond 64 bits signed),
// kTooLarge (nesting, memory).
base::Result<Value> from_json(Meter& meter, const nlohmann::ordered_json& json, int32_t depth);

}  // namespace text::jinja
