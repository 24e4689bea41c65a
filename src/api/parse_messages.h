// The `messages` of a chat: checked, and brought into the shape that chat templates expect (string
// contents).
#pragma once

#include <nlohmann/json.hpp>

#include "api/fields.h"

namespace api {

// Text parts of one message are joined by line breaks, as vLLM does it. Errors name the place:
// messages[2].content[0].type.
Failure read_messages(Value value, nlohmann::ordered_json& out);

}  // namespace api
