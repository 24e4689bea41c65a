// /v1/chat/completions/render and /v1/completions/render: what a request would give the engine,
// without running it, in the shape of vLLM's. Routers ask for it to know a prompt's tokens. Thread:
// any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "api/errors.h"
#include "api/generate_request.h"
#include "api/served_model.h"

namespace api {

// Chat: {"request_id", "token_ids", "sampling_params", "model", ...}; completions: an array of
// such, one a prompt. The body is read as that of the endpoint itself, with the same errors.
std::variant<std::string, ApiError> answer_render(Endpoint endpoint, std::string_view body,
                                                  const ServedModel& model, int64_t now_unix_s,
                                                  std::string_view id_suffix);

}  // namespace api
