// The `messages` of a chat: checked, and brought into the shape that chat templates expect (string
// contents).
#pragma once

#include <nlohmann/json.hpp>

#include "api/fields.h"

namespace api {

// Values of all kinds in a conversation, those in its objects, arrays and the JSON text of calls'
// arguments too: a message with role and text is three. Each costs up to half a kilobyte until the
// prompt is rendered (docs/api.md).
inline constexpr size_t kConversationNodesMax = 300'000;

// `value` holds no more of them; counted before anything is made of it. `name`: the field.
Failure check_conversation_size(Value value, std::string_view name);

// Text parts of one message are joined by line breaks, as vLLM does it. Errors name the place:
// messages[2].content[0].type.
Failure read_messages(Value value, nlohmann::ordered_json& out);

}  // namespace api
