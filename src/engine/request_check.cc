#include "engine/request_check.h"

#include <iterator>

namespace engine {

using base::Code;
using base::error;

namespace {

base::Result<void> check_policy(const core::AttentionPolicy& policy, const RequestLimits& limits) {
  if (policy.kind == core::AttentionPolicy::Kind::kDense) return {};
  if (limits.budget_max == 0) return error(Code::kUnsupported, "only dense attention is available");
  const int32_t budget = policy.budget_tokens, page = limits.page_tokens;
  if (budget >= 2 * page && budget <= limits.budget_max && budget % page == 0) return {};
  return error(Code::kInvalidArgument,
               "the attention budget is {}: it must be a multiple of {} in [{}, {}]", budget, page,
               2 * page, limits.budget_max);
}

}  // namespace

base::Result<void> check_request(const core::Request& request, const RequestLimits& limits) {
  const core::SamplingParams& sampling = request.sampling;
  const auto in_vocab = [&](core::TokenId t) { return t >= 0 && t < limits.vocab_size; };
  const auto out_of_range = [&](const char* what, core::TokenId t) {
    return error(Code::kInvalidArgument, "{} has token {}, the vocabulary has {}", what, t,
                 limits.vocab_size);
  };
  if (request.prompt.empty()) return error(Code::kInvalidArgument, "the prompt is empty");
  if (sampling.max_tokens < 0) {
    return error(Code::kInvalidArgument, "max_tokens is {}", sampling.max_tokens);
  }
  RETURN_IF_ERROR(check_policy(request.policy, limits));
  const int64_t total = std::ssize(request.prompt) + int64_t{sampling.max_tokens};
  if (total > limits.context_max) {
    return error(Code::kTooLarge,
                 "the prompt has {} tokens and max_tokens is {}: together they may have {}",
                 request.prompt.size(), sampling.max_tokens, limits.context_max);
  }
  if (std::ssize(request.prompt) > limits.prompt_max) {
    return error(Code::kTooLarge,
                 "the prompt has {} tokens: the device memory holds what {} need while they are "
                 "computed",
                 request.prompt.size(), limits.prompt_max);
  }
  if (std::ssize(request.forced) > sampling.max_tokens) {
    return error(Code::kInvalidArgument, "{} tokens of output are given, max_tokens is {}",
                 request.forced.size(), sampling.max_tokens);
  }
  if (request.constraint != nullptr && !request.forced.empty()) {
    return error(Code::kUnsupported, "a constrained output cannot be given");
  }
  for (const core::TokenId t : request.prompt) {
    if (!in_vocab(t)) return out_of_range("the prompt", t);
  }
  for (const core::TokenId t : request.forced) {
    if (!in_vocab(t)) return out_of_range("the given output", t);
  }
  for (const core::TokenId t : sampling.stop_token_ids) {
    if (!in_vocab(t)) return out_of_range("stop_token_ids", t);
  }
  for (const auto& [t, bias] : sampling.logit_bias) {
    if (!in_vocab(t)) return out_of_range("logit_bias", t);
  }
  return {};
}

}  // namespace engine
