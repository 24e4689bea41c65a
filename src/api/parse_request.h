// A request body -> GenerateRequest, or the first thing that is wrong with it, by field name.
//
// Unknown fields are ignored, each name being logged once per process: clients send fields of
// servers that are newer than this one. Known fields whose features do not exist here are refused,
// unless their value asks for nothing. A field that occurs twice is refused. Thread: any.
#pragma once

#include <string_view>
#include <variant>

#include "api/errors.h"
#include "api/generate_request.h"

namespace api {

// `vocab_size` bounds token ids. Memory: about 20 bytes a byte of `body` while it runs.
std::variant<GenerateRequest, ApiError> parse_request(Endpoint endpoint, std::string_view body,
                                                      int32_t vocab_size);

}  // namespace api
