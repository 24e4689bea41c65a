// The one table of what can go wrong for a client: situation -> HTTP status, type, code.
// docs/errors.md shows it to people; a test keeps the two equal.
//
// Clients match on `code` and on phrases of the message ("maximum context length is"), so both are
// contracts.
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

// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string error_json(const ApiError& error);
http::Response error_response(const ApiError& error);

// What an error of text/ or engine/ means to a client.
ApiError from_engine_error(const base::Error& error);

}  // namespace api
