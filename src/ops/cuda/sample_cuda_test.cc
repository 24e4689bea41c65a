// Tokens and log-probabilities are those of ops::sample on the CPU, for every rule, at vocabularies
// of all sizes, among ties and masked tokens; a draw that differs must lie within rounding of a
// cut. The version without clusters, other batches and other runs give the same bits.
#include "ops/cuda/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "ops/cuda/gpu_fixture.h"
#include "ops/philox.h"
#include "ops/sample.h"

namespace ops::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One row: its raw logits, and what the CPU is given.
struct Call {
  std::vector<float> logits;
  core::SamplingParams params;
  std::vector<core::TokenId> tokens = {0};
  int32_t prompt_len = 1;
  std::vector<core::TokenId> stop_ids;
  std::vector<uint32_t> allowed = {};
  int32_t forced = -1;
};

bool has_penalties(const core::SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

// What the parameters alone say of a row.
SampleRow row_of(const core::SamplingParams& p) {
  return {.temperature = p.temperature,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .top_k = p.top_k,
          .seed = p.seed,
          .repetition_penalty = p.repetition_penalty,
          .presence_penalty = p.presence_penalty,
          .frequency_penalty = p.frequency_penalty,
          .num_logprobs = p.logprobs.value_or(-1)};
}

// The edits that `call` asks for, as an executor makes them.
std::vector<LogitEdit> edits_of(const Call& call) {
  std::map<core::TokenId, LogitEdit> edits;
  const auto edit = [&](core::TokenId token) -> LogitEdit& {
    LogitEdit& entry = edits[token];
    entry.token = token;
    return entry;
  };
  const core::SamplingParams& params = call.params;
  for (auto [token, bias] : params.logit_bias) edit(token).bias += bias;
  if (std::ssize(call.tokens) - call.prompt_len < params.min_tokens) {
    for (core::TokenId token : call.stop_ids) edit(token).masked = 1;
  }
  std::vector<LogitEdit> list;
  for (const auto& [token, entry] : edits) list.push_back(entry);
  return list;
}

struct Expected {
  core::TokenId token = 0;
  core::PositionLogprobs logprobs;
  std::vector<float> edited;
};

Expected run_on_cpu(const Call& call) {
  Expected expected{.edited = call.logits};
  std::vector<std::byte> workspace(
      static_cast<size_t>(ops::sample_workspace_bytes(std::ssize(call.logits))) + 64);
  std::byte* aligned =
      workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  expected.token = ops::sample({.logits = expected.edited,
                                .params = &call.params,
                                .tokens = call.tokens,
                                .prompt_len = call.prompt_len,
                                .stop_ids = call.stop_ids,
                                .allowed = call.allowed,
                                .workspace = {aligned, workspace.size() - 64}},
                               call.params.logprobs ? &expected.logprobs : nullptr);
  if (call.forced >= 0)
    ops::position_logprobs(call.logits, call.forced, call.params.logprobs.value_or(0),
                           &expected.logprobs);
  return expected;
}

// Whether rounding of 1e-6 could have made `token` of this call: its range of the sum of weights,
// under cuts a little wider or narrower, holds the draw.
bool is_within_rounding(const Call& call, const std::vector<float>& edited, int32_t token) {
  const core::SamplingParams& params = call.params;
  std::vector<size_t> order(edited.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return edited[a] != edited[b] ? edited[a] > edited[b] : a < b;
  });
  const double max = static_cast<double>(edited[order[0]]);
  for (double slack : {0.0, 1e-6, -1e-6}) {
    std::vector<double> p(edited.size());
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] = std::exp((static_cast<double>(edited[i]) - max) /
                      static_cast<double>(params.temperature));
      if (p[i] < static_cast<double>(params.min_p) * (1.0 + slack)) p[i] = 0.0;
    }
    if (params.top_k > 0) {
      for (size_t i = static_cast<size_t>(params.top_k); i < order.size(); ++i) p[order[i]] = 0.0;
    }
    double total = 0.0, sum = 0.0;
    for (double x : p) total += x;
    const double wanted = static_cast<double>(params.top_p) * total * (1.0 + slack);
    for (size_t id : order) {
      if (params.top_p < 1.0f && sum >= wanted) p[id] = 0.0;
      sum += p[id];
    }
    total = 0.0;
    for (double x : p) total += x;
    const double draw = philox_uniform(params.seed, static_cast<uint64_t>(std::ssize(call.tokens) -
                                                                          call.prompt_len)) *
                        total;
    double before = 0.0;
    for (int32_t i = 0; i < token; ++i) before += p[static_cast<size_t>(i)];
    const double through = before + p[static_cast<size_t>(token)];
    if (p[static_cast<size_t>(token)] > 0.0 && before - 2e-6 * total <= draw &&
        draw <= through + 2e-6 * total)
      return true;
  }
  return false;
}

class SampleTest : public GpuTest {
 protected:
  std::vector<float> random_logits(size_t vocab, float spread = 3.0f, bool ties = false) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> logits(vocab);
    for (float& x : logits) {
      x = normal(random_);
      if (ties) x = std::round(x);
    }
    return logits;
  }

  std::vector<SampleResult> run_on_gpu(const std::vector<Call>& calls, bool portable) {
    const size_t vocab = calls[0].logits.size(), count = calls.size();
    std::vector<float> logits;
    std::vector<SampleRow> rows;
    std::vector<LogitEdit> edits;
    std::vector<CountedToken> tokens;
    std::vector<uint32_t> masks;
    const size_t mask_words = (vocab + 31) / 32;
    for (size_t i = 0; i < count; ++i) {
      const Call& call = calls[count - 1 - i];  // logits in another order than rows
      logits.insert(logits.end(), call.logits.begin(), call.logits.end());
    }
    for (size_t i = 0; i < count; ++i) {
      const Call& call = calls[i];
      const std::vector<LogitEdit> mine = edits_of(call);
      const core::SamplingParams& p = call.params;
      SampleRow row = row_of(p);
      row.logits_row = static_cast<int32_t>(count - 1 - i);
      row.draw = std::ssize(call.tokens) - call.prompt_len;
      row.counts_row = has_penalties(p) ? static_cast<int32_t>(i) : -1;
      row.allowed_row = call.allowed.empty() ? -1 : static_cast<int32_t>(masks.size() / mask_words);
      row.edits_begin = static_cast<int32_t>(edits.size());
      row.edits_end = static_cast<int32_t>(edits.size() + mine.size());
      row.forced = call.forced;
      rows.push_back(row);
      edits.insert(edits.end(), mine.begin(), mine.end());
      masks.insert(masks.end(), call.allowed.begin(), call.allowed.end());
      for (size_t t = 0; t < call.tokens.size() && has_penalties(p); ++t) {
        tokens.push_back({static_cast<int32_t>(i), call.tokens[t],
                          t < static_cast<size_t>(call.prompt_len) ? 1 : 0});
      }
    }
    rows.push_back({.logits_row = -1});  // padding
    SampleResult* results = poisoned<SampleResult>(rows.size());
    const float* there = upload(logits);
    TokenCount* counts = upload(std::vector<TokenCount>(count * vocab));
    const auto num_rows = static_cast<int32_t>(rows.size());
    const auto size = static_cast<int64_t>(vocab);
    const int64_t bytes = portable ? sample_portable_workspace_bytes(num_rows, size)
                                   : sample_workspace_bytes(num_rows, size);
    // In two parts: counts go on from where they are.
    std::shuffle(tokens.begin(), tokens.end(), random_);
    const auto num_tokens = static_cast<int32_t>(tokens.size()), half = num_tokens / 3;
    const CountedToken* tokens_there = upload(tokens);
    for (const auto& [begin, end] : {std::pair(0, half), std::pair(half, num_tokens)}) {
      count_tokens(stream(), {.tokens = tokens_there + begin,
                              .num_tokens = end - begin,
                              .counts = counts,
                              .vocab_size = size});
    }
    (portable ? sample_portable : sample)(
        stream(), {.logits = there,
                   .vocab_size = size,
                   .rows = upload(rows),
                   .num_rows = num_rows,
                   .edits = upload(edits),
                   .counts = counts,
                   .allowed = masks.empty() ? nullptr : upload(masks),
                   .results = results,
                   .workspace = poisoned<std::byte>(static_cast<size_t>(bytes))});
    std::vector<SampleResult> got = download(results, rows.size());
    EXPECT_EQ(-1, got.back().token) << "a padding row was touched";
    got.pop_back();
    const std::vector<float> after = download(there, logits.size());
    EXPECT_EQ(0, std::memcmp(after.data(), logits.data(), 4 * logits.size())) << "logits changed";
    clear();
    return got;
  }

  // Runs all calls at once and checks each; returns how many tokens were within rounding only.
  int check(const std::vector<Call>& calls) {
    const std::vector<SampleResult> got = run_on_gpu(calls, false);
    const std::vector<SampleResult> portable = run_on_gpu(calls, true);
    EXPECT_EQ(0, std::memcmp(got.data(), portable.data(), got.size() * sizeof(SampleResult)))
        << "clusters change bits";
    int differ = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      const Call& call = calls[i];
      const Expected expected = run_on_cpu(call);
      const core::TokenId token = call.forced >= 0 ? call.forced : expected.token;
      SCOPED_TRACE(testing::Message()
                   << "call " << i << " of " << call.logits.size() << " logits, temperature "
                   << call.params.temperature << ", top_k " << call.params.top_k << ", top_p "
                   << call.params.top_p << ", min_p " << call.params.min_p);
      if (got[i].token != token) {
        ++differ;
        EXPECT_TRUE(call.forced < 0 && call.params.temperature > 0.0f && got[i].token >= 0 &&
                    got[i].token < std::ssize(call.logits) &&
                    is_within_rounding(call, expected.edited, got[i].token))
            << "token " << got[i].token << ", expected " << token;
      } else if (call.params.logprobs) {
        expect_logprobs(expected.logprobs, got[i]);
      } else {
        EXPECT_EQ(0, got[i].rank);
        EXPECT_EQ(0, got[i].num_top);
      }
      if (HasFailure()) return differ;
    }
    return differ;
  }

  static void expect_logprobs(const core::PositionLogprobs& expected, const SampleResult& got) {
    const auto near = [](float a, float b) {
      return a == b || (std::isnan(a) && std::isnan(b)) ||
             std::fabs(a - b) <= 1e-6f * std::fabs(a) + 2e-6f;
    };
    EXPECT_TRUE(near(expected.token.logprob, got.logprob))
        << expected.token.logprob << " and " << got.logprob;
    EXPECT_EQ(expected.rank, got.rank);
    ASSERT_EQ(std::ssize(expected.top), got.num_top);
    for (size_t i = 0; i < expected.top.size(); ++i) {
      EXPECT_EQ(expected.top[i].token, got.top_tokens[i]) << "place " << i;
      EXPECT_TRUE(near(expected.top[i].logprob, got.top_logprobs[i]))
          << "place " << i << ": " << expected.top[i].logprob << " and " << got.top_logprobs[i];
    }
  }

  std::mt19937 random_{5};
};

// Clusters of a Hopper GPU hold the last but one; the last leaves no room for what a block keeps
// beside its part.
constexpr size_t kVocabs[] = {1,      7,      1000,   2048,   2049,   49152,
                              128256, 151936, 262143, 262144, 442368, 450000};

TEST_F(SampleTest, GreedyTakesTheFirstOfTheLargest) {
  for (size_t vocab : kVocabs) {
    std::vector<Call> calls;
    for (int i = 0; i < 5; ++i) {
      calls.push_back({.logits = random_logits(vocab, 3.0f, i % 2 == 1)});
      calls.back().params.temperature = 0.0f;
    }
    calls[2].logits.assign(vocab, -kInfinity);
    calls[4].logits.assign(vocab, -0.0f);  // equal to 0
    calls[4].logits.back() = 0.0f;
    EXPECT_EQ(0, check(calls));
    if (HasFailure()) return;
  }
}

TEST_F(SampleTest, DrawsAreThoseOfTheCpu) {
  int differ = 0, drawn = 0;
  for (size_t vocab : kVocabs) {
    std::vector<Call> calls;
    for (int i = 0; i < 24; ++i) {
      Call call{.logits = random_logits(vocab, i % 3 == 0 ? 1.0f : 4.0f, i % 8 == 5)};
      call.params.temperature = std::vector{1.0f, 0.7f, 1.6f, 0.05f}[random_() % 4];
      if (i % 4 == 1 || i % 4 == 3) call.params.top_k = std::vector{1, 20, 50, 1000}[random_() % 4];
      if (i % 4 >= 2) call.params.top_p = std::vector{0.9f, 0.5f, 0.999f, 0.01f}[random_() % 4];
      if (i % 6 == 4) call.params.min_p = std::vector{0.01f, 0.2f, 1.0f}[random_() % 3];
      call.params.seed = random_();
      for (uint32_t n = random_() % 50; n > 0; --n) call.tokens.push_back(0);
      calls.push_back(call);
    }
    drawn += 24;
    differ += check(calls);
    if (HasFailure()) return;
  }
  EXPECT_LE(differ, drawn / 50) << "of " << drawn;
}

TEST_F(SampleTest, CutsAmongEqualLogitsKeepTheLowestIds) {
  for (size_t vocab : {size_t{100}, size_t{50000}, size_t{262144}}) {
    std::vector<Call> calls;
    for (int i = 0; i < 16; ++i) {
      Call call;
      call.logits.assign(vocab, 1.0f);
      if (i % 2 == 1) call.logits[vocab / 3] = 2.0f, call.logits[vocab / 2] = 0.0f;
      if (i % 4 < 2) call.params.top_k = static_cast<int32_t>(1 + random_() % 60);
      if (i % 4 > 0) call.params.top_p = 0.25f * static_cast<float>(1 + i % 3);
      call.params.seed = random_();
      call.params.logprobs = i;
      calls.push_back(call);
    }
    check(calls);
    if (HasFailure()) return;
  }
}

TEST_F(SampleTest, PenaltiesBiasesAndMasksAreTheCpus) {
  for (size_t vocab : {size_t{1000}, size_t{128256}, size_t{151937}}) {
    std::vector<Call> calls;
    for (int i = 0; i < 20; ++i) {
      Call call{.logits = random_logits(vocab)};
      core::SamplingParams& params = call.params;
      params.temperature = i % 2 == 0 ? 0.0f : 0.8f;
      params.repetition_penalty = i % 3 == 0 ? 1.0f : 1.3f;
      params.presence_penalty = i % 4 == 0 ? 0.0f : 0.6f;
      params.frequency_penalty = i % 5 == 0 ? 0.0f : 0.3f;
      if (i % 3 == 1) params.top_p = 0.9f;
      for (int n = 0; n < 900; ++n)
        call.tokens.push_back(static_cast<int32_t>(random_() % std::min(vocab, size_t{3000})));
      call.prompt_len = 400;
      for (int n = 0; n < 5; ++n)
        params.logit_bias.emplace_back(static_cast<int32_t>(random_() % vocab), n == 0   ? 100.0f
                                                                                : n == 1 ? -100.0f
                                                                                         : 1.5f);
      params.min_tokens = i % 2 == 0 ? 10000 : 0;
      // What would be chosen otherwise is masked.
      call.stop_ids = {params.logit_bias[0].first, 3};
      if (i % 4 == 2) params.logprobs = 20;
      params.seed = random_();
      calls.push_back(call);
    }
    check(calls);
    if (HasFailure()) return;
  }
}

TEST_F(SampleTest, NothingIsLeftWhenAllAreMasked) {
  Call call{.logits = random_logits(6)};
  call.stop_ids = {0, 1, 2, 3, 4, 5};
  call.params.min_tokens = 5;
  EXPECT_EQ(0, check({call}));
}

// Few tokens or many, with penalties, cuts and biases for tokens that are not allowed; and masks
// under which the other rules leave nothing, where the first allowed token is taken.
TEST_F(SampleTest, DisallowedTokensAreNeverDrawn) {
  for (size_t vocab : {size_t{7}, size_t{1000}, size_t{128256}, size_t{151937}, size_t{262144}}) {
    std::vector<Call> calls;
    for (int i = 0; i < 24; ++i) {
      Call call{.logits = random_logits(vocab)};
      core::SamplingParams& params = call.params;
      params.temperature = i % 3 == 0 ? 0.0f : 0.9f;
      if (i % 4 == 1) params.top_p = 0.9f;
      if (i % 4 == 2) params.top_k = 5;
      if (i % 4 == 3) params.repetition_penalty = 1.3f;
      params.seed = random_();
      if (i % 2 == 0) params.logprobs = 3;
      call.allowed.assign((vocab + 31) / 32, i % 6 == 0 ? ~0u : 0u);
      const size_t some = i % 5 == 0 ? 1 : vocab / 5 + 1;
      for (size_t n = 0; n < some; ++n) {
        const uint32_t id = static_cast<uint32_t>(random_() % vocab);
        call.allowed[id / 32] ^= 1u << (id % 32);
      }
      const uint32_t sure = static_cast<uint32_t>(random_() % vocab);
      call.allowed[sure / 32] |= 1u << (sure % 32);
      params.logit_bias = {{static_cast<int32_t>(random_() % vocab), 100.0f}};
      if (i % 8 == 7) {  // every allowed token is masked otherwise, or cannot be drawn
        call.logits.assign(vocab, -kInfinity);
        call.logits[(sure + 1) % vocab] = 1.0f;
        params.logit_bias.clear();
        call.allowed.assign((vocab + 31) / 32, 0u);
        call.allowed[sure / 32] = 1u << (sure % 32);
      }
      if (i % 6 != 0 || vocab > 32) calls.push_back(call);
    }
    check(calls);
    if (HasFailure()) return;
  }
}

TEST_F(SampleTest, LogprobsAreOfTheRawLogits) {
  for (size_t vocab : kVocabs) {
    std::vector<Call> calls;
    for (int i = 0; i < 12; ++i) {
      Call call{.logits = random_logits(vocab, 3.0f, i % 3 == 2)};
      call.params.temperature = i % 2 == 0 ? 0.0f : 1.3f;
      call.params.seed = random_();
      call.params.logprobs = std::vector{0, 1, 5, 20}[static_cast<size_t>(i % 4)];
      if (i % 4 == 3) call.forced = static_cast<int32_t>(random_() % vocab);
      if (i % 5 == 4) call.logits[0] = -kInfinity;
      calls.push_back(call);
    }
    check(calls);
    if (HasFailure()) return;
  }
}

TEST_F(SampleTest, ARowIsTheSameAloneAndInABatch) {
  std::vector<Call> calls;
  for (int i = 0; i < 40; ++i) {
    Call call{.logits = random_logits(32003)};
    call.params.top_p = 0.95f;
    call.params.seed = random_();
    call.params.logprobs = 3;
    calls.push_back(call);
  }
  const std::vector<SampleResult> together = run_on_gpu(calls, false);
  for (size_t i = 0; i < calls.size(); i += 13) {
    const std::vector<SampleResult> alone = run_on_gpu({calls[i]}, false);
    EXPECT_EQ(0, std::memcmp(alone.data(), &together[i], sizeof(SampleResult))) << i;
  }
}

}  // namespace
}  // namespace ops::cuda
