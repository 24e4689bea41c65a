#include "engine/request_check.h"

#include <iterator>

namespace engine {

using base::Code;
using base::error;

base::Result<void> check_request(const core::Request& request, int32_t vocab_size,
                                 int32_t context_max) {
  const core::SamplingParams& sampling = request.sampling;
  const auto in_vocab = [&](core::TokenId t) { return t >= 0 && t < vocab_size; };
  const auto out_of_range = [&](const char* what, core::TokenId t) {
    return error(Code::kInvalidArgument, "{} has token {}, the vocabulary has {}", what, t,
                 vocab_size);
  };
  if (request.prompt.empty()) return error(Code::kInvalidArgument, "the prompt is empty");
  if (sampling.max_tokens < 0) {
    return error(Code::kInvalidArgument, "max_tokens is {}", sampling.max_tokens);
  }
  if (request.policy.kind != core::AttentionPolicy::Kind::kDense) {
    return error(Code::kUnsupported, "only dense attention is available");
  }
  const int64_t total = std::ssize(request.prompt) + int64_t{sampling.max_tokens};
  if (total > context_max) {
    return error(Code::kTooLarge,
                 "the prompt has {} tokens and max_tokens is {}: together they may have {}",
                 request.prompt.size(), sampling.max_tokens, context_max);
  }
  if (std::ssize(request.forced) > sampling.max_tokens) {
    return error(Code::kInvalidArgument, "{} tokens of output are given, max_tokens is {}",
                 request.forced.size(), sampling.max_tokens);
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
