// Goal: the scheduling brain shows the effects that it was built for, those of SparseServe's
// figures 1, 13, 15 and 16. Method: the real engine, scheduler and KV bookkeeping serve a workload
// in simulated time on a machine of given rates (serving_run.h, cost_model.h), with a mechanism on
// and off. Assertions are on order, never on figures; the figures are printed.
#include <gtest/gtest.h>

#include <algorithm>
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
TEST_F(EffectsTest, DecodingSlowsPastTheBatchThatFitsUnlessWorkingSetsAreAdmitted) {
  const auto decode = [&](const std::string& name, int32_t batch) {
    ServingConfig c = config(name);
    c.options.max_num_seqs = batch;
    return serve(c, std::vector<Arrival>(static_cast<size_t>(batch), {1, 16000, 1000}));
  };
  std::printf("%5s | %28s | %28s | %28s\n", "", "+Offload (memcpy)", "+FT", "+WC");
  std::printf("%5s", "batch");
  for (int i = 0; i < 3; ++i) std::printf(" | %9s %9s %8s", "tokens/s", "loads", "runs");
  std::map<std::string, std::map<int32_t, ServingFigures>> figures;
  const std::vector<int32_t> batches{2, 6, 8, 16, 24, 32, 48};
  for (const int32_t batch : batches) {
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

}  // namespace
}  // namespace sim
