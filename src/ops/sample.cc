#include "ops/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "ops/philox.h"

namespace ops {
namespace {

using core::TokenId;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Below this temperature the draw is the most likely token (vLLM's bound).
constexpr float kGreedyTemperature = 1e-5f;
// Elements of a partial sum of weights.
constexpr int64_t kBlock = 256;

// Vectors of the baseline processor in the compilers' own types: left to themselves, they keep
// these loops scalar because of the comparisons.
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
constexpr size_t kLanes = 4;

Floats load(const float* x) {
  Floats v;
  std::memcpy(&v, x, sizeof(v));
  return v;
}

// exp(x) for x <= 0 with relative error 2e-7; 0 below -87 and for NaN.
Floats exp_negative(Floats x) {
  const Ints inside = x > -87.0f;
  const Floats clamped = inside ? x : Floats{} - 87.0f;
  constexpr float kRound =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Floats shifted = clamped * 1.44269504088896341f + kRound;
  const Floats n = shifted - kRound;
  const Floats r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats y = r * (1.0f / 720) + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  const Ints bits = ((std::bit_cast<Ints>(shifted) << 23) + std::bit_cast<Ints>(y)) & inside;
  return std::bit_cast<Floats>(bits);
}

// weights[i] = exp((logits[i] - max) * scale).
void weigh(std::span<const float> logits, float max, float scale, float* weights) {
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const Floats weight = exp_negative((load(&logits[i]) - max) * scale);
    std::memcpy(weights + i, &weight, sizeof(weight));
  }
  for (; i < logits.size(); ++i) weights[i] = exp_negative(Floats{} + (logits[i] - max) * scale)[0];
}

// The largest logit; -infinity when there is none.
float largest(std::span<const float> x) {
  Floats lanes[4] = {Floats{} - kInfinity, Floats{} - kInfinity, Floats{} - kInfinity,
                     Floats{} - kInfinity};
  size_t i = 0;
  for (; i + 4 * kLanes <= x.size(); i += 4 * kLanes) {
    for (size_t j = 0; j < 4; ++j) {
      const Floats v = load(&x[i + j * kLanes]);
      lanes[j] = v > lanes[j] ? v : lanes[j];
    }
  }
  float max = -kInfinity;
  for (; i < x.size(); ++i) max = x[i] > max ? x[i] : max;
  for (const Floats& v : lanes) {
    for (size_t j = 0; j < kLanes; ++j) max = v[j] > max ? v[j] : max;
  }
  return max;
}

// The first of the largest logits.
TokenId most_likely(std::span<const float> logits) {
  const auto place = std::find(logits.begin(), logits.end(), largest(logits));
  return place == logits.end() ? 0 : static_cast<TokenId>(place - logits.begin());
}

// Best first: the order of every ranking here.
struct Likelier {
  const float* logits;
  bool operator()(TokenId a, TokenId b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

void apply_bias(const core::SamplingParams& params, std::span<float> logits) {
  for (const auto& [token, bias] : params.logit_bias) {
    if (token >= 0 && token < std::ssize(logits)) logits[static_cast<size_t>(token)] += bias;
  }
}

// `counts` (V) is scratch: occurrences in the output, and a bit for tokens of the prompt.
void apply_penalties(const SampleArgs& args, std::span<int32_t> counts) {
  const core::SamplingParams& params = *args.params;
  if (params.repetition_penalty == 1.0f && params.presence_penalty == 0.0f &&
      params.frequency_penalty == 0.0f)
    return;
  constexpr int32_t kInPrompt = 1 << 30;
  std::fill(counts.begin(), counts.end(), 0);
  const auto prompt_len = static_cast<size_t>(args.prompt_len);
  for (size_t i = 0; i < args.tokens.size(); ++i) {
    const TokenId token = args.tokens[i];
    DCHECK(token >= 0 && token < std::ssize(counts), "token {}", token);
    int32_t& count = counts[static_cast<size_t>(token)];
    if (i < prompt_len) {
      count |= kInPrompt;
    } else {
      ++count;
    }
  }
  for (size_t token = 0; token < counts.size(); ++token) {
    if (counts[token] == 0) continue;
    float& logit = args.logits[token];
    logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    const int32_t count = counts[token] & ~kInPrompt;
    logit -= params.frequency_penalty * static_cast<float>(count);
    if (count > 0) logit -= params.presence_penalty;
  }
}

void mask_stop_tokens(const SampleArgs& args) {
  if (std::ssize(args.tokens) - args.prompt_len >= args.params->min_tokens) return;
  for (TokenId token : args.stop_ids) {
    if (token >= 0 && token < std::ssize(args.logits))
      args.logits[static_cast<size_t>(token)] = -kInfinity;
  }
}

void mask_disallowed(const SampleArgs& args) {
  for (size_t i = 0; i < args.logits.size() && !args.allowed.empty(); i += 32) {
    const uint32_t word = args.allowed[i / 32];
    if (word == ~uint32_t{0}) continue;
    for (size_t j = i; j < std::min(i + 32, args.logits.size()); ++j) {
      if ((word >> (j % 32) & 1) == 0) args.logits[j] = -kInfinity;
    }
  }
}

// Where every logit is masked: greedy among the allowed.
TokenId first_allowed(const SampleArgs& args) {
  for (size_t i = 0; i < args.allowed.size(); ++i) {
    if (args.allowed[i] != 0)
      return static_cast<TokenId>(i * 32 + static_cast<size_t>(std::countr_zero(args.allowed[i])));
  }
  return 0;
}

// The least likely token that is kept; those ranked after it are not.
struct Cut {
  float logit = -kInfinity;
  TokenId token = std::numeric_limits<TokenId>::max();

  bool keeps(float other, TokenId id) const {
    return other > logit || (other == logit && id <= token);
  }
};

double sum_of(std::span<const float> weights) {
  double lanes[4] = {};
  size_t i = 0;
  for (; i + 4 <= weights.size(); i += 4) {
    for (size_t j = 0; j < 4; ++j) lanes[j] += weights[i + j];
  }
  for (; i < weights.size(); ++i) lanes[0] += weights[i];
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// Tokens with weight, counted and weighed by how far their logit is below the largest: finds the
// few tokens among which a cut falls without ranking the others.
class Buckets {
 public:
  Buckets(std::span<const float> logits, std::span<const float> weights, float max, float scale)
      : logits_(logits), weights_(weights), max_(max), scale_(scale * (kNumBuckets / 87.0f)) {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0.0f) continue;
      const size_t bucket = bucket_of(logits[i]);
      ++counts_[bucket];
      masses_[bucket] += weights[i];
    }
  }

  // Keeps the best `count`, in mass `mass` together. `ids` (V) is scratch.
  Cut cut_at_count(int64_t count, std::span<TokenId> ids, double& mass) const {
    size_t bucket = 0;
    mass = 0.0;
    for (; bucket < kNumBuckets && counts_[bucket] < count; ++bucket) {
      count -= counts_[bucket];
      mass += masses_[bucket];
    }
    if (bucket == kNumBuckets) return {};
    const std::span<TokenId> inside = gather(bucket, Cut{}, ids);
    const auto last = inside.begin() + count - 1;
    std::nth_element(inside.begin(), last, inside.end(), Likelier{logits_.data()});
    for (auto id = inside.begin(); id <= last; ++id) mass += weight(*id);
    return {logits_[static_cast<size_t>(*last)], *last};
  }

  // Keeps the best of those kept by `cut` whose masses first reach `mass`.
  Cut cut_at_mass(double mass, const Cut& cut, std::span<TokenId> ids) const {
    size_t bucket = 0;
    for (; bucket < kNumBuckets && masses_[bucket] < mass; ++bucket) mass -= masses_[bucket];
    if (bucket == kNumBuckets) return cut;
    std::span<TokenId> inside = gather(bucket, cut, ids);
    // Halves the range until it is small: linear however many tokens are equal.
    while (inside.size() > 32) {
      const size_t half = inside.size() / 2;
      std::nth_element(inside.begin(), inside.begin() + static_cast<std::ptrdiff_t>(half),
                       inside.end(), Likelier{logits_.data()});
      double best = 0.0;
      for (TokenId id : inside.first(half)) best += weight(id);
      if (best >= mass) {
        inside = inside.first(half);
      } else {
        mass -= best;
        inside = inside.subspan(half);
      }
    }
    std::sort(inside.begin(), inside.end(), Likelier{logits_.data()});
    for (TokenId id : inside) {
      mass -= weight(id);
      if (mass <= 0.0) return {logits_[static_cast<size_t>(id)], id};
    }
    return inside.empty() ? cut : Cut{logits_[static_cast<size_t>(inside.back())], inside.back()};
  }

  double mass() const { return std::accumulate(std::begin(masses_), std::end(masses_), 0.0); }

 private:
  static constexpr size_t kNumBuckets = 2048;

  // Never falls as the logit falls.
  size_t bucket_of(float logit) const {
    return std::min(kNumBuckets - 1, static_cast<size_t>((max_ - logit) * scale_));
  }
  double weight(TokenId id) const { return weights_[static_cast<size_t>(id)]; }

  std::span<TokenId> gather(size_t bucket, const Cut& cut, std::span<TokenId> ids) const {
    size_t count = 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const auto id = static_cast<TokenId>(i);
      if (weights_[i] > 0.0f && bucket_of(logits_[i]) == bucket && cut.keeps(logits_[i], id))
        ids[count++] = id;
    }
    return ids.first(count);
  }

  std::span<const float> logits_, weights_;
  float max_, scale_;
  int32_t counts_[kNumBuckets] = {};
  double masses_[kNumBuckets] = {};
};

// Where top_k and then top_p cut. `ids` (V) is scratch.
Cut find_cut(const core::SamplingParams& params, const Buckets& buckets, std::span<TokenId> ids) {
  Cut cut;
  double mass = buckets.mass();
  if (params.top_k > 0) cut = buckets.cut_at_count(params.top_k, ids, mass);
  if (params.top_p < 1.0f) cut = buckets.cut_at_mass(params.top_p * mass, cut, ids);
  return cut;
}

// The token at which the sum of weights, in order of ids, passes uniform * total.
TokenId draw(std::span<const float> weights, double uniform) {
  const auto block = [&](size_t begin) {
    return weights.subspan(begin, std::min<size_t>(kBlock, weights.size() - begin));
  };
  double total = 0.0;
  for (size_t begin = 0; begin < weights.size(); begin += kBlock) total += sum_of(block(begin));
  const double target = uniform * total;
  double sum = 0.0;
  TokenId last =
      0;  // the last token with weight: where rounding may leave a target beyond every sum
  for (size_t begin = 0; begin < weights.size(); begin += kBlock) {
    const double next = sum + sum_of(block(begin));
    if (next > sum) {
      const bool here = next > target;
      for (size_t i = 0; i < block(begin).size(); ++i) {
        if (weights[begin + i] == 0.0f) continue;
        last = static_cast<TokenId>(begin + i);
        sum += weights[begin + i];
        if (here && sum > target) return last;
      }
      if (here) return last;
    }
    sum = next;
  }
  return last;
}

TokenId choose(const SampleArgs& args, std::span<float> weights, std::span<TokenId> ids) {
  const core::SamplingParams& params = *args.params;
  const std::span<float> logits = args.logits;
  apply_bias(params, logits);
  apply_penalties(args, ids);
  mask_stop_tokens(args);
  mask_disallowed(args);
  const float max = largest(logits);
  if (max == -kInfinity) return first_allowed(args);
  // A penalty that overflowed: nothing to draw from.
  if (params.temperature < kGreedyTemperature || !std::isfinite(max)) return most_likely(logits);

  const float scale = 1.0f / params.temperature;
  weigh(logits, max, scale, weights.data());
  if (params.min_p > 0.0f) {
    for (float& weight : weights) weight = weight >= params.min_p ? weight : 0.0f;
  }
  if (params.top_k > 0 || params.top_p < 1.0f) {
    const Cut cut = find_cut(params, Buckets(logits, weights, max, scale), ids);
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!cut.keeps(logits[i], static_cast<TokenId>(i))) weights[i] = 0.0f;
    }
  }
  return draw(weights, philox_uniform(params.seed, static_cast<uint64_t>(std::ssize(args.tokens) -
                                                                         args.prompt_len)));
}

}  // namespace

int64_t sample_workspace_bytes(int64_t vocab_size) {
  return 3 * vocab_size * int64_t{sizeof(float)};
}

TokenId sample(const SampleArgs& args, core::PositionLogprobs* logprobs) {
  const size_t vocab_size = args.logits.size();
  CHECK(vocab_size > 0 && std::ssize(args.tokens) >= args.prompt_len);
  CHECK(std::ssize(args.workspace) >= sample_workspace_bytes(std::ssize(args.logits)),
        "workspace of {} bytes for {} logits", args.workspace.size(), vocab_size);
  auto* floats = reinterpret_cast<float*>(args.workspace.data());
  const std::span<float> weights{floats, vocab_size};
  const std::span<float> raw{floats + vocab_size, vocab_size};
  const std::span<TokenId> ids{reinterpret_cast<TokenId*>(floats + 2 * vocab_size), vocab_size};
  if (logprobs != nullptr) std::copy(args.logits.begin(), args.logits.end(), raw.begin());
  const TokenId token = choose(args, weights, ids);
  if (logprobs != nullptr)
    position_logprobs(raw, token, args.params->logprobs.value_or(0), logprobs);
  return token;
}

void position_logprobs(std::span<const float> logits, TokenId token, int32_t num_top,
                       core::PositionLogprobs* out) {
  const float max = largest(logits);
  double sum = 0.0;
  float weights[kBlock];
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t count = std::min<size_t>(kBlock, logits.size() - begin);
    weigh(logits.subspan(begin, count), max, 1.0f, weights);
    sum += sum_of({weights, count});
  }
  const double log_sum = static_cast<double>(max) + std::log(sum);
  const auto logprob = [&](TokenId id) {
    const float logit = logits[static_cast<size_t>(id)];
    return core::TokenLogprob{id, static_cast<float>(static_cast<double>(logit) - log_sum)};
  };
  const Likelier likelier{logits.data()};
  out->token = logprob(token);
  out->rank = 1;
  for (TokenId id = 0; id < std::ssize(logits); ++id) out->rank += likelier(id, token);

  // A heap of the best so far whose front is the worst of them.
  const auto order = [&](const core::TokenLogprob& a, const core::TokenLogprob& b) {
    return likelier(a.token, b.token);
  };
  const auto count = std::min<size_t>(static_cast<size_t>(std::max(0, num_top)), logits.size());
  out->top.clear();
  out->top.reserve(count);
  for (TokenId id = 0; id < std::ssize(logits) && count > 0; ++id) {
    if (out->top.size() == count) {
      if (!likelier(id, out->top.front().token)) continue;
      std::pop_heap(out->top.begin(), out->top.end(), order);
      out->top.pop_back();
    }
    out->top.push_back({id, 0.0f});
    std::push_heap(out->top.begin(), out->top.end(), order);
  }
  std::sort_heap(out->top.begin(), out->top.end(), order);
  for (core::TokenLogprob& entry : out->top) entry = logprob(entry.token);
}

}  // namespace ops
