// `response_format` and `structured_outputs`: what the output must look like. Private to
// parse_request.cc.
#pragma once

#include "api/fields.h"
#include "api/generate_request.h"

namespace api {

// OpenAI's: {"type": "text" | "json_object" | "json_schema", ...}.
Failure read_response_format(Value value, GenerateRequest& request);
// vLLM's: one of json, regex, choice, grammar, json_object.
Failure read_structured_outputs(Value value, GenerateRequest& request);

}  // namespace api
