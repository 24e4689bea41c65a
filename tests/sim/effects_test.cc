// Goal: the scheduling brain shows the effects that it was built for, those of SparseServe's
// figures 1, 13, 15 and 16. Method: the real engine, scheduler and KV bookkeeping serve a workload
// in simulated time on a machine of given rates (serving_run.h, cost_model.h), with a mechanism on
// and off. Assertions are on order, never on figures; the figures are printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>

#include "base/log.h"
#include "sim/serving_run.h"

namespace sim {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
// What an A100 with 40 GB has beside the weights of an 8B model: about 3,400 rows of frames beside
// statistics and workspace, 230 of which are a working set.
constexpr int64_t kKvBytes = 18 * kGiB;
constexpr int32_t kSelection = 64;  // pages: 2048 tokens

class EffectsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(base::set_log_level("off").ok()); }

  // The ablation's step of that name.
  static ServingConfig config(const std::string& name) {
    for (const ServingConfig& step : ablation(kKvBytes)) {
      if (step.name == name) return step;
    }
    ADD_FAILURE() << "no step " << name;
    return {};
  }
};

TEST_F(EffectsTest, SelectionsHaveTheLocalityThatWasMeasured) {
  constexpr int32_t kPages = 1000, kSteps = 400, kWindow = 12;
  const std::map<int32_t, double> measured{{1, .451}, {2, .258}, {3, .167}, {4, .120}, {8, .042}};
  SelectionProcess process(kLongneedle, kSelection, 1);
  std::map<int32_t, int64_t> misses;
  std::vector<std::set<int32_t>> history;
  int64_t working_set = 0, counted = 0;
  for (int32_t step = 0; step < kSteps; ++step) {
    const std::vector<int32_t> before(process.stack().begin(), process.stack().end());
    const auto selected = process.select(kPages);
    history.emplace_back(selected.begin(), selected.end());
    ASSERT_EQ(history.back().size(), size_t{kSelection}) << "a page twice";
    EXPECT_TRUE(history.back().contains(0) && history.back().contains(kPages - 1));
    if (step < kSteps / 4) continue;
    ++counted;
    for (const int32_t page : selected) {
      const auto distance = std::ranges::find(before, page) - before.begin();
      for (const auto& [size, share] : measured) misses[size] += distance >= size * kSelection;
    }
    std::set<int32_t> all;
    for (size_t i = history.size() - kWindow; i < history.size(); ++i) {
      all.insert(history[i].begin(), history[i].end());
    }
    working_set += std::ssize(all);
  }
  for (const auto& [size, share] : measured) {
    const double found =
        static_cast<double>(misses[size]) / static_cast<double>(counted * kSelection);
    std::printf("cache of %d selections: misses %.3f, measured %.3f\n", size, found, share);
    EXPECT_NEAR(found, share, .02);
  }
  const double found = static_cast<double>(working_set) / static_cast<double>(counted * kSelection);
  std::printf("working set of %d steps: %.2f selections, measured 3.55\n", kWindow, found);
  EXPECT_NEAR(found, 3.55, .5);
}

// Figures 1 and 15. All requests come at once, and only steps without prompts count.
class DecodingTest : public EffectsTest, public ::testing::WithParamInterface<Machine> {};

TEST_P(DecodingTest, SlowsPastTheBatchThatFitsUnlessWorkingSetsAreAdmitted) {
  const auto decode = [&](const std::string& name, int32_t batch) {
    ServingConfig c = config(name);
    c.machine = GetParam();
    c.options.max_num_seqs = batch;
    return serve(c, std::vector<Arrival>(static_cast<size_t>(batch), {1, 16000, 1000}));
  };
  std::printf("%5s | %28s | %28s | %28s\n", "", "+Offload (memcpy)", "+FT", "+WC");
  std::printf("%5s", "batch");
  for (int i = 0; i < 3; ++i) std::printf(" | %9s %9s %8s", "tokens/s", "loads", "runs");
  std::map<std::string, std::map<int32_t, ServingFigures>> figures;
  for (const int32_t batch : {2, 6, 8, 16, 24, 32, 48}) {
    std::printf("\n%5d", batch);
    for (const char* name : {"+Offload", "+FT", "+WC"}) {
      const ServingFigures f = figures[name][batch] = decode(name, batch);
      ASSERT_GT(f.pure_steps, 100);
      std::printf(" | %9.1f %9.1f %8.1f", f.pure_tokens_s, f.pure_pages_loaded, f.pure_batch);
    }
  }
  std::printf("\nloads: pages of each column a step; runs: decodes a step\n");
  const auto tokens_s = [&](const char* name, int32_t batch) {
    return figures[name][batch].pure_tokens_s;
  };
  for (const char* name : {"+Offload", "+FT"}) {
    EXPECT_GT(tokens_s(name, 6), 1.5 * tokens_s(name, 2)) << name << " does not rise";
    EXPECT_LT(tokens_s(name, 16), tokens_s(name, 6)) << name;
    EXPECT_LT(tokens_s(name, 32), .8 * tokens_s(name, 16)) << name << " does not fall";
    EXPECT_LT(tokens_s(name, 48), tokens_s(name, 32)) << name;
  }
  // 14 working sets fit: from there on a larger batch costs nothing.
  EXPECT_GT(tokens_s("+WC", 6), 1.5 * tokens_s("+WC", 2));
  for (const int32_t batch : {24, 32, 48}) {
    EXPECT_GT(tokens_s("+WC", batch), .95 * tokens_s("+WC", 16)) << batch;
  }
  EXPECT_GT(tokens_s("+WC", 48), 1.5 * tokens_s("+FT", 48));
  EXPECT_GT(figures["+FT"][48].pure_pages_loaded, 4 * figures["+WC"][48].pure_pages_loaded);
}

INSTANTIATE_TEST_SUITE_P(Machines, DecodingTest, ::testing::Values(a100(), h200()),
                         [](const auto& instance) { return instance.param.name; });

// Figure 16a. Prompts that come while others decode; outputs are long, so that many do.
TEST_F(EffectsTest, SegmentedPromptsStartWhereChunkedOnesQueue) {
  const auto ttft = [&](const char* name, double rate) {
    return serve(config(name), poisson_arrivals(1, 60, rate, 2048, 32000, 1024));
  };
  std::printf("%10s | %24s | %24s\n", "", "+WC (chunked)", "+LP");
  std::printf("%10s", "requests/s");
  for (int i = 0; i < 2; ++i) std::printf(" | %7s %6s %9s", "TTFT, s", "TBT, s", "worst TBT");
  std::map<double, std::array<ServingFigures, 2>> figures;
  for (const double rate : {.2, .3, .4, .5}) {
    figures[rate] = {ttft("+WC", rate), ttft("+LP", rate)};
    std::printf("\n%10.2f", rate);
    for (const ServingFigures& f : figures[rate]) {
      std::printf(" | %7.2f %6.3f %9.2f", f.mean_ttft_s, f.mean_tbt_s, f.mean_worst_tbt_s);
    }
  }
  std::printf("\n");
  for (const auto& [rate, f] : figures) {
    EXPECT_EQ(f[0].layers_segmented, 0);
    EXPECT_GT(f[1].layers_segmented, 0);
    EXPECT_LT(f[1].mean_ttft_s, 1.02 * f[0].mean_ttft_s) << rate;
  }
  EXPECT_GT(figures[.2][1].mean_ttft_s, .9 * figures[.2][0].mean_ttft_s) << "no load, no effect";
  EXPECT_LT(figures[.4][1].mean_ttft_s, .6 * figures[.4][0].mean_ttft_s);
  EXPECT_LT(figures[.5][1].mean_ttft_s, .5 * figures[.5][0].mean_ttft_s);
}

// Figure 16b. One prompt alone.
TEST_F(EffectsTest, SmallChunksSlowPromptAttentionAndSegmentsDoNot) {
  const auto attention = [&](bool layered, int32_t tokens) {
    ServingConfig c = config(layered ? "+LP" : "+WC");
    c.options.tiers.chunk_tokens = tokens;
    c.options.tiers.max_inject_tokens = int64_t{tokens} * llama_8b().num_layers;
    if (layered) c.options.device_memory_bytes = 5 * kGiB;  // not as resident
    const ServingFigures f = serve(c, {{1, 32000, 1}});
    EXPECT_EQ(f.layers_segmented > 0, layered);
    return f.prompt_attention_s;
  };
  const double plain =
      llama_8b().num_layers * CostModel(a100(), llama_8b(), 32).prompt_attention_us(0, 32000) / 1e6;
  std::printf("%6s %8s %8s   prompt attention, plain = 1\n", "tokens", "chunked", "layers");
  double before = 10;
  for (const int32_t tokens : {512, 1024, 2048}) {
    const double chunked = attention(false, tokens) / plain;
    const double layers = attention(true, tokens) / plain;
    std::printf("%6d %8.2f %8.2f\n", tokens, chunked, layers);
    EXPECT_GT(chunked, 1.02);
    EXPECT_LT(chunked, before);
    EXPECT_LT(layers, chunked);
    before = chunked;
  }
}

// Figure 13: the highest rate of requests at which P99 TBT stays within 25 times a decode iteration
// and the mean queueing delay within 2 s. Offloading pages one by one pays for its larger batches
// with every miss, so it is judged with the transfers that make it bearable.
TEST_F(EffectsTest, EachStepRaisesTheRateThatIsSustained) {
  const CostModel cost(a100(), llama_8b(), 32);
  const double iteration_us = a100().step_us +
                              cost.linear_us(llama_8b().num_layers, llama_8b().num_layers, 1) +
                              cost.decode_attention_us(kSelection, 500);
  const double tbt_max = 25 * iteration_us / 1e6;
  const auto goodput = [&](const ServingConfig& c, uint64_t seed) {
    double fits = .02, over = 1;
    while (over - fits > .01) {
      const double rate = (fits + over) / 2;
      const ServingFigures f = serve(c, poisson_arrivals(seed, 60, rate, 2048, 32000, 1024));
      (f.mean_delay_s <= 2 && f.p99_tbt_s <= tbt_max ? fits : over) = rate;
    }
    return fits;
  };
  std::printf("P99 TBT at most %.3f s\n%10s %10s\n", tbt_max, "", "requests/s");
  std::map<std::string, double> rate;
  for (const ServingConfig& step : ablation(kKvBytes)) {
    rate[step.name] = (goodput(step, 1) + goodput(step, 2)) / 2;
    std::printf("%10s %10.3f\n", step.name.c_str(), rate[step.name]);
  }
  EXPECT_GT(rate["+SA"], 1.1 * rate["dense"]);
  EXPECT_GT(rate["+FT"], 1.2 * rate["+Offload"]);
  EXPECT_GT(rate["+FT"], rate["+SA"]);
  EXPECT_GT(rate["+WC"], .97 * rate["+FT"]);
  EXPECT_GT(rate["+LP"], 1.1 * rate["+WC"]);
}

// Each step against the one before it, where it is meant to help.
TEST_F(EffectsTest, EachStepHelpsWhereItIsMeantTo) {
  const auto decode = [&](const char* name, int32_t batch) {
    ServingConfig c = config(name);
    c.options.max_num_seqs = batch;
    return serve(c, std::vector<Arrival>(static_cast<size_t>(batch), {1, 16000, 1000}));
  };
  const auto busy = [&](const char* name, double rate) {
    return serve(config(name), poisson_arrivals(1, 60, rate, 2048, 32000, 1024));
  };
  const auto show = [](const char* what, double before, double after) {
    std::printf("%-44s %8.2f -> %8.2f\n", what, before, after);
  };
  const ServingFigures dense = decode("dense", 8), sparse = decode("+SA", 8);
  show("+SA: 8 decode at 16k, tokens/s", dense.pure_tokens_s, sparse.pure_tokens_s);
  EXPECT_GT(sparse.pure_tokens_s, 1.3 * dense.pure_tokens_s);

  const ServingFigures held = busy("+SA", .2), offloaded = busy("+Offload", .2);
  show("+Offload: .2 requests/s, queueing delay, s", held.mean_delay_s, offloaded.mean_delay_s);
  EXPECT_LT(offloaded.mean_delay_s, .7 * held.mean_delay_s);

  const ServingFigures pages = decode("+Offload", 16), gathered = decode("+FT", 16);
  show("+FT: 16 decode at 16k, tokens/s", pages.pure_tokens_s, gathered.pure_tokens_s);
  EXPECT_GT(gathered.pure_tokens_s, 2 * pages.pure_tokens_s);

  const ServingFigures all = busy("+FT", .5), admitted = busy("+WC", .5);
  show("+WC: .5 requests/s, tokens/s", all.tokens_s, admitted.tokens_s);
  EXPECT_GT(admitted.tokens_s, 1.3 * all.tokens_s);

  const ServingFigures segmented = busy("+LP", .5);
  show("+LP: .5 requests/s, TTFT, s", admitted.mean_ttft_s, segmented.mean_ttft_s);
  EXPECT_LT(segmented.mean_ttft_s, .6 * admitted.mean_ttft_s);
}

TEST_F(EffectsTest, WithRoomTiersCostNothing) {
  const auto arrivals = poisson_arrivals(1, 20, .2, 2048, 16000, 256);
  const ServingFigures sparse = serve(config("+SA"), arrivals);
  const ServingFigures full = serve(config("+LP"), arrivals);
  std::printf("%5s %9s %9s %9s\n", "", "TTFT, s", "TBT, s", "all, s");
  for (const auto& [name, f] : {std::pair{"+SA", sparse}, std::pair{"+LP", full}}) {
    std::printf("%5s %9.4f %9.5f %9.2f\n", name, f.mean_ttft_s, f.mean_tbt_s, f.makespan_s);
  }
  EXPECT_EQ(full.pages_loaded, 0);
  EXPECT_NEAR(full.mean_ttft_s, sparse.mean_ttft_s, .01 * sparse.mean_ttft_s);
  EXPECT_NEAR(full.mean_tbt_s, sparse.mean_tbt_s, .01 * sparse.mean_tbt_s);
  EXPECT_NEAR(full.makespan_s, sparse.makespan_s, .01 * sparse.makespan_s);
}

TEST_F(EffectsTest, OneWorkloadIsOneRun) {
  const auto arrivals = poisson_arrivals(7, 30, .5, 2048, 32000, 512);
  EXPECT_EQ(serve(config("+LP"), arrivals), serve(config("+LP"), arrivals));
  EXPECT_NE(serve(config("+LP"), arrivals),
            serve(config("+LP"), poisson_arrivals(8, 30, .5, 2048, 32000, 512)));
}

}  // namespace
}  // namespace sim
