// Fields of /v1/messages and /v1/messages/count_tokens that have Anthropic's shapes, turned into
// what a chat has: messages, function tools and a tool choice. Private to parse_request.cc.
#pragma once

#include "api/fields.h"
#include "api/generate_request.h"

namespace api {

// A system text of a coding agent that differs with each request by design; in a prompt it would
// keep every prefix from being found in the cache.
bool is_billing_header(std::string_view text);

// `system`: a string or blocks of text, into request.instructions.
Failure read_anthropic_system(Value value, GenerateRequest& request);
// `messages`: blocks of text, thinking, tool_use and tool_result; cache_control is ignored. A last
// message of the assistant is one to be continued.
Failure read_anthropic_messages(Value value, GenerateRequest& request);
Failure read_anthropic_tools(Value value, GenerateRequest& request);
Failure read_anthropic_tool_choice(Value value, GenerateRequest& request);
// `thinking`: sets `enable_thinking` for the template.
Failure read_anthropic_thinking(Value value, GenerateRequest& request);

// `output_config`: `effort` is what reasoning_effort is to chats, `format` what response_format is.
Failure read_anthropic_output_config(Value value, GenerateRequest& request);
// `output_format`: the older name of that `format`, which beta clients still send.
Failure read_anthropic_output_format(Value value, GenerateRequest& request);

}  // namespace api
