// The one table of what can go wrong for a client: situation -> HTTP status, type, code.
// docs/errors.md shows it to people; a test keeps the two equal.
//
// Clients match on `code` and on phrases of the message ("maximum context length is"), so both are
// contracts. The paths of Anthropic's API have an error shape of their own, filled from the same
// table.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/message.h"

namespace api {

enum class Problem : uint8_t {
  kInvalidValue,
  kMissingParameter,
  kUnsupportedParameter,
  kMalformedRequest,
  kContextLengthExceeded,
  kModelNotFound,
  kRouteNotFound,
  kMethodNotAllowed,
  kInvalidApiKey,
  kForbidden,
  kUnsupportedMediaType,
  kRequestTooLarge,
  kHeaderTooLarge,
  kQueueFull,
  kTooManyConnections,
  kLoading,
  kDraining,
  kEngineDead,
  kInternal,
};

struct ProblemRow {
  Problem problem;
  const char* situation;  // for docs/errors.md
  int status;
  const char* type;
  const char* code;
  bool retry_after;  // the answer carries Retry-After
};

std::span<const ProblemRow> problem_table();
const ProblemRow& row_of(Problem problem);

struct ApiError {
  Problem problem = Problem::kInternal;
  std::string message;
  std::string param;  // "" = null
  // kContextLengthExceeded: further fields of the error object.
  int64_t n_prompt_tokens = -1;
  int64_t n_ctx = -1;
};

enum class ErrorShape : uint8_t {
  kOpenAi,     // {"error":{"message":...,"type":...,"param":...,"code":...}}
  kAnthropic,  // {"type":"error","error":{"type":...,"message":...},"request_id":...}
};

// What clients of that path expect.
ErrorShape error_shape_of(std::string_view path);
// Anthropic's word for what has gone wrong.
const char* anthropic_type(const ProblemRow& row);

// What a client may read of it: of what failed inside, nothing but where to look.
std::string_view public_message(const ApiError& error);

// `request_id`: for Anthropic's shape; "" = null.
std::string error_json(const ApiError& error, ErrorShape shape = ErrorShape::kOpenAi,
                       std::string_view request_id = "");
http::Response error_response(const ApiError& error, ErrorShape shape = ErrorShape::kOpenAi,
                              std::string_view request_id = "");

// What an error of text/ or engine/ means to a client.
ApiError from_engine_error(const base::Error& error);

}  // namespace api
