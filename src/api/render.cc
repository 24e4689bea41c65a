#include "api/render.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "api/prepare.h"

namespace api {
namespace {

using nlohmann::ordered_json;

// A float as people wrote it: 0.1, not 0.10000000149.
double as_written(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

template <typename T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

// vLLM's names.
ordered_json sampling_json(const GenerateRequest& r, const PreparedPrompt& prompt) {
  const core::SamplingParams& s = r.sampling;
  ordered_json out = {{"n", r.n},
                      {"presence_penalty", as_written(s.presence_penalty)},
                      {"frequency_penalty", as_written(s.frequency_penalty)},
                      {"repetition_penalty", as_written(s.repetition_penalty)},
                      {"temperature", as_written(s.temperature)},
                      {"top_p", as_written(s.top_p)},
                      {"top_k", s.top_k},
                      {"min_p", as_written(s.min_p)},
                      {"seed", or_null(r.seed)},
                      {"stop", r.stop},
                      {"stop_token_ids", s.stop_token_ids},
                      {"ignore_eos", s.ignore_eos},
                      {"max_tokens", prompt.max_tokens},
                      {"min_tokens", s.min_tokens},
                      {"logprobs", or_null(r.logprobs)},
                      {"prompt_logprobs", or_null(r.prompt_logprobs)},
                      {"include_stop_str_in_output", r.include_stop_str_in_output},
                      {"skip_special_tokens", r.skip_special_tokens},
                      {"logit_bias", nullptr}};
  for (const auto& [token, bias] : s.logit_bias)
    out["logit_bias"][std::to_string(token)] = as_written(bias);
  return out;
}

}  // namespace

std::variant<std::string, ApiError> answer_render(Endpoint endpoint, std::string_view body,
                                                  const ServedModel& model, int64_t now_unix_s,
                                                  std::string_view id_suffix) {
  auto outcome = prepare_generation(endpoint, body, model, now_unix_s);
  if (auto* error = std::get_if<ApiError>(&outcome)) return std::move(*error);
  const Prepared& prepared = std::get<Prepared>(outcome);
  const GenerateRequest& request = prepared.request;
  const bool chat = endpoint == Endpoint::kChat;
  ordered_json out = ordered_json::array();
  for (const PreparedPrompt& prompt : prepared.prompts) {
    ordered_json options;
    if (request.stream) {
      options = {{"include_usage", request.include_usage},
                 {"continuous_usage_stats", request.continuous_usage_stats}};
    }
    out.push_back({{"request_id", fmt::format("{}-{}", chat ? "chatcmpl" : "cmpl", id_suffix)},
                   {"token_ids", prompt.tokens},
                   {"features", nullptr},
                   {"sampling_params", sampling_json(request, prompt)},
                   {"model", request.model.empty() ? model.served_name : request.model},
                   {"stream", request.stream},
                   {"stream_options", std::move(options)},
                   {"cache_salt", request.cache_salt.empty() ? ordered_json()
                                                             : ordered_json(request.cache_salt)}});
  }
  return (chat ? out.front() : out).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace api
