// What the output must look like, as each API says it. Private to parse_request.cc and its helpers.
#pragma once

#include "api/fields.h"
#include "api/generate_request.h"

namespace api {

// OpenAI's: {"type": "text" | "json_object" | "json_schema", ...}.
Failure read_response_format(Value value, GenerateRequest& request);
// The same with the schema beside `type`, for the field of that name: `text.format` of responses,
// and `output_config.format` of messages, which takes json_schema alone.
Failure read_text_format(Value value, std::string_view field, bool only_schema,
                         GenerateRequest& request);
// vLLM's: one of json, regex, choice, grammar, json_object.
Failure read_structured_outputs(Value value, GenerateRequest& request);

}  // namespace api
