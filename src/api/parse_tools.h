// Tools of a request: what may be called, whether it must be, and calls of past messages.
#pragma once

#include "api/fields.h"
#include "api/generate_request.h"

namespace api {

inline constexpr size_t kToolsMax = 512;
inline constexpr size_t kToolNodesMax = 65'536;  // values of all tools together
inline constexpr size_t kToolNameBytesMax = 256;

// An array of OpenAI function tools, kept as they are; an empty one counts as absent. Errors: a
// tool of another type, a missing, repeated or impossible name.
Failure read_tools(Value value, nlohmann::ordered_json& out);

// Tools whose fields stand beside each other: name, description, a JSON Schema, strict.
struct FlatTools {
  std::string_view type;  // of those that the client describes and runs
  bool type_required = false;
  std::string_view schema;  // its key
  bool schema_required = false;
};
// An array of such tools, made OpenAI function tools. Errors: as above, and a missing schema.
Failure read_flat_tools(Value value, const FlatTools& form, nlohmann::ordered_json& out);

// "auto", "none", "required", or {"type": "function", "function": {"name": ...}}.
Failure read_tool_choice(Value value, ToolChoice& out);

// What templates get of the arguments that a past call has: the object that `text` holds (an empty
// one of no text), or the text where it holds none, or too large a one.
nlohmann::ordered_json call_arguments(std::string_view text);

// `tool_calls` of a past message: arguments become the object that their text holds, or stay text
// where it holds none (or too large a one).
Failure read_tool_calls(Value value, const std::string& where, nlohmann::ordered_json& out);

// What can only be judged together: a choice without tools, a named tool that is not there.
Failure check_tool_choice(const GenerateRequest& request);

}  // namespace api
