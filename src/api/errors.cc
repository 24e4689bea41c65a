#include "api/errors.h"

#include "api/json_writer.h"
#include "base/check.h"
#include "base/log.h"

namespace api {
namespace {

constexpr const char* kInvalidRequest = "invalid_request_error";
constexpr const char* kUnavailable = "service_unavailable";
// Whatever failed inside may name paths and addresses: it is for the log.
constexpr std::string_view kInternalMessage =
    "The server failed to answer; its log says why, under the x-request-id of this answer.";
constexpr std::string_view kMessagesPath = "/v1/messages";
constexpr const char* kRetryAfterSeconds = "1";

constexpr ProblemRow kTable[] = {
    {Problem::kInvalidValue, "a field has the wrong type or is out of its range", 400,
     kInvalidRequest, "invalid_value", false},
    {Problem::kMissingParameter, "a required field is absent", 400, kInvalidRequest,
     "missing_required_parameter", false},
    {Problem::kUnsupportedParameter, "a field asks for something this server does not do", 400,
     kInvalidRequest, "unsupported_parameter", false},
    {Problem::kMalformedRequest, "the body is not JSON, or the message is not HTTP", 400,
     kInvalidRequest, "malformed_request", false},
    {Problem::kContextLengthExceeded, "prompt and max_tokens together are over the context", 400,
     kInvalidRequest, "context_length_exceeded", false},
    {Problem::kModelNotFound, "`model` is not the served one", 404, "not_found_error",
     "model_not_found", false},
    {Problem::kRouteNotFound, "no such path", 404, "not_found_error", "not_found", false},
    {Problem::kMethodNotAllowed, "the path takes other methods", 405, kInvalidRequest,
     "method_not_allowed", false},
    {Problem::kInvalidApiKey, "the API key is missing or wrong", 401, "authentication_error",
     "invalid_api_key", false},
    {Problem::kForbidden, "without API keys: the Host or the Origin is a foreign one", 403,
     "permission_error", "forbidden", false},
    {Problem::kUnsupportedMediaType,
     "the body of a POST is not application/json, or comes in a Content-Encoding", 415,
     kInvalidRequest, "unsupported_media_type", false},
    {Problem::kRequestTooLarge, "the body is over the limit", 413, kInvalidRequest,
     "request_too_large", false},
    {Problem::kHeaderTooLarge, "the header is over the limit", 431, kInvalidRequest,
     "header_too_large", false},
    {Problem::kQueueFull, "the engine's or the text workers' queue is full", 429,
     "rate_limit_error", "queue_full", true},
    {Problem::kTooManyConnections, "too many connections, or too many bytes of bodies", 503,
     kUnavailable, "too_many_connections", true},
    {Problem::kLoading, "the model is being loaded", 503, kUnavailable, "loading", true},
    {Problem::kDraining, "the server is shutting down", 503, kUnavailable, "draining", true},
    {Problem::kEngineDead, "the engine has stopped responding", 503, kUnavailable, "engine_dead",
     true},
    {Problem::kInternal, "a defect of the server", 500, "server_error", "internal_error", false},
};

void append_or_null(std::string& out, std::string_view text) {
  if (text.empty()) {
    out += "null";
  } else {
    append_json_string(out, text);
  }
}

std::string openai_json(const ApiError& error, const ProblemRow& row) {
  std::string out = R"({"error":{"message":)";
  append_json_string(out, public_message(error));
  out += R"(,"type":)";
  append_json_string(out, row.type);
  out += R"(,"param":)";
  append_or_null(out, error.param);
  out += R"(,"code":)";
  append_json_string(out, row.code);
  if (error.n_prompt_tokens >= 0)
    out += ",\"n_prompt_tokens\":" + std::to_string(error.n_prompt_tokens);
  if (error.n_ctx >= 0) out += ",\"n_ctx\":" + std::to_string(error.n_ctx);
  return out + "}}";
}

std::string anthropic_json(const ApiError& error, const ProblemRow& row,
                           std::string_view request_id) {
  std::string out = R"({"type":"error","error":{"type":)";
  append_json_string(out, anthropic_type(row));
  out += R"(,"message":)";
  append_json_string(out, public_message(error));
  out += R"(},"request_id":)";
  append_or_null(out, request_id);
  return out + "}";
}

}  // namespace

std::string_view public_message(const ApiError& error) {
  return error.problem == Problem::kInternal ? kInternalMessage : std::string_view(error.message);
}

std::span<const ProblemRow> problem_table() {
  return kTable;
}

const ProblemRow& row_of(Problem problem) {
  const ProblemRow& row = kTable[static_cast<size_t>(problem)];
  CHECK(row.problem == problem, "the table is not in the order of the enum");
  return row;
}

ErrorShape error_shape_of(std::string_view path) {
  return path == kMessagesPath || path.starts_with(std::string(kMessagesPath) + "/")
             ? ErrorShape::kAnthropic
             : ErrorShape::kOpenAi;
}

const char* anthropic_type(const ProblemRow& row) {
  switch (row.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 500:
      return "api_error";
    case 503:
      return "overloaded_error";
    default:
      return kInvalidRequest;
  }
}

std::string error_json(const ApiError& error, ErrorShape shape, std::string_view request_id) {
  const ProblemRow& row = row_of(error.problem);
  return shape == ErrorShape::kAnthropic ? anthropic_json(error, row, request_id)
                                         : openai_json(error, row);
}

http::Response error_response(const ApiError& error, ErrorShape shape,
                              std::string_view request_id) {
  const ProblemRow& row = row_of(error.problem);
  http::Response response;
  response.status = row.status;
  if (row.retry_after) response.headers.push_back({"Retry-After", kRetryAfterSeconds});
  if (error.problem == Problem::kInvalidApiKey)
    response.headers.push_back({"WWW-Authenticate", "Bearer"});
  response.body = error_json(error, shape, request_id);
  return response;
}

ApiError from_engine_error(const base::Error& error) {
  switch (error.code) {
    case base::Code::kInvalidArgument:
      return {Problem::kInvalidValue, error.message};
    case base::Code::kTooLarge:
      return {Problem::kContextLengthExceeded, error.message};
    case base::Code::kUnsupported:
      return {Problem::kUnsupportedParameter, error.message};
    case base::Code::kOverloaded:
      return {Problem::kQueueFull, error.message};
    case base::Code::kNotFound:
    case base::Code::kCancelled:
    case base::Code::kIo:
    case base::Code::kInternal:
      break;
  }
  LOG_ERROR("a request failed: {}", error.message);
  return {Problem::kInternal, error.message};
}

}  // namespace api
