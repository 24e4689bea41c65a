// Fields of /v1/responses that have shapes of their own, turned into what a chat has. The server
// keeps nothing, so what refers to something kept is refused by name. Private to parse_request.cc.
#pragma once

#include "api/fields.h"
#include "api/generate_request.h"

namespace api {

// `input`: a string, or items: messages, function_call, function_call_output, reasoning. What an
// assistant thought, said and called in one turn becomes one message.
Failure read_responses_input(Value value, GenerateRequest& request);
// Tools of type function; `tool_choice`: auto, none, required or one function.
Failure read_responses_tools(Value value, GenerateRequest& request);
Failure read_responses_tool_choice(Value value, GenerateRequest& request);
Failure read_responses_include(Value value, GenerateRequest& request);
Failure read_responses_instructions(Value value, GenerateRequest& request);
Failure read_responses_max_tokens(Value value, GenerateRequest& request);
Failure read_responses_text(Value value, GenerateRequest& request);
Failure read_responses_reasoning(Value value, GenerateRequest& request);
Failure read_responses_truncation(Value value, GenerateRequest& request);
Failure read_responses_logprobs(Value value, GenerateRequest& request);
Failure read_responses_store(Value value, GenerateRequest& request);
Failure read_metadata(Value value, GenerateRequest& request);  // of /v1/messages as well

// Keeps a field for the answer, which repeats it as it was given.
void echo_field(Value value, std::string_view name, GenerateRequest& request);

}  // namespace api
