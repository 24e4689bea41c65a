// Goal: the presets are the systems of the papers, a flag changes its one value, and a flag that
// could change nothing is refused with what to do instead. Method: the table of
// docs/architecture.md by hand, then each contradiction by its message.
#include "apps/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace apps {
namespace {

using ::testing::HasSubstr;

KvChoice choose(std::string_view preset, const KvFlags& flags = {}) {
  return choose_kv(preset, flags).value();
}

void expect_refused(std::string_view preset, const KvFlags& flags, const std::string& text) {
  const auto choice = choose_kv(preset, flags);
  ASSERT_FALSE(choice.ok()) << preset << ": " << text;
  EXPECT_EQ(choice.error().code, base::Code::kInvalidArgument);
  EXPECT_THAT(choice.error().message, HasSubstr(text));
}

TEST(Presets, DenseHasNeitherSelectionNorTiers) {
  const KvChoice dense = choose("dense");
  EXPECT_EQ(dense.sparse.budget_tokens, 0);
  EXPECT_FALSE(dense.tiers.host_memory_bytes);
  EXPECT_EQ(dense.tiers.prefill, core::Prefill::kChunked);
  EXPECT_EQ(dense.tiers.chunk_tokens, 2048);
  EXPECT_EQ(dense.page_tokens, 32);
}

TEST(Presets, SparseAddsABudgetAndOffloadTheTiers) {
  const KvChoice sparse = choose("sparse");
  EXPECT_EQ(sparse.sparse.budget_tokens, 2048);
  EXPECT_EQ(sparse.sparse.page_stats, core::PageStatsKind::kCuboidMean);
  EXPECT_EQ(sparse.sparse.reuse_interval, 1);
  EXPECT_FALSE(sparse.tiers.host_memory_bytes);
  const KvChoice offload = choose("sparse-offload");
  EXPECT_EQ(offload.sparse.budget_tokens, 2048);
  EXPECT_TRUE(offload.tiers.host_memory_bytes);
  EXPECT_EQ(offload.tiers.load, core::LoadMethod::kMemcpy);
  EXPECT_EQ(offload.tiers.save, core::SaveMethod::kMemcpy);
  EXPECT_EQ(offload.tiers.admission, core::Admission::kNone);
  EXPECT_EQ(offload.tiers.prefill, core::Prefill::kChunked);
}

TEST(Presets, FullIsSparseServe) {
  const KvChoice full = choose("full");
  EXPECT_EQ(full.sparse.budget_tokens, 2048);
  EXPECT_EQ(full.tiers.host_memory_bytes, 0);
  EXPECT_EQ(full.tiers.load, core::LoadMethod::kAuto);
  EXPECT_EQ(full.tiers.save, core::SaveMethod::kAuto);
  EXPECT_EQ(full.tiers.admission, core::Admission::kWorkingSet);
  EXPECT_EQ(full.tiers.working_set_window, 12);
  EXPECT_EQ(full.tiers.prefill, core::Prefill::kLayer);
  EXPECT_EQ(full.tiers.max_inject_tokens, 0);
}

TEST(Presets, LserveAndDuoNeedAHeadsFile) {
  expect_refused("lserve", {}, "spillway calibrate");
  expect_refused("duo", {}, "spillway calibrate");
  expect_refused("duo", {.heads = "none"}, "--heads FILE");
  const KvChoice lserve = choose("lserve", {.heads = "h.json"});
  EXPECT_EQ(lserve.heads_path, "h.json");
  EXPECT_EQ(lserve.page_tokens, 64);
  EXPECT_EQ(lserve.sparse.logical_page_tokens, 16);
  EXPECT_EQ(lserve.sparse.page_stats, core::PageStatsKind::kMinMax);
  EXPECT_EQ(lserve.sparse.reuse_interval, 4);
  EXPECT_EQ(lserve.sparse.budget_tokens, 2048);
  EXPECT_TRUE(choose("lserve", {.heads = "none"}).heads_path.empty());
  EXPECT_EQ(choose("duo", {.heads = "h.json"}).sparse.budget_tokens, 0);
}

TEST(Presets, AFlagChangesItsOneValue) {
  EXPECT_EQ(choose("sparse", {.budget = 1024}).sparse.budget_tokens, 1024);
  EXPECT_EQ(choose("full", {.page_stats = "min-max"}).sparse.page_stats,
            core::PageStatsKind::kMinMax);
  EXPECT_EQ(choose("full", {.reuse_interval = 4}).sparse.reuse_interval, 4);
  EXPECT_EQ(choose("full", {.dense_layers = 2}).sparse.dense_layers, 2);
  EXPECT_EQ(choose("full", {.host_memory = "2GiB"}).tiers.host_memory_bytes, int64_t{2} << 30);
  EXPECT_EQ(choose("full", {.load_method = "uva"}).tiers.load, core::LoadMethod::kUva);
  EXPECT_EQ(choose("full", {.save_granularity = "step"}).tiers.save_granularity,
            core::SaveGranularity::kStep);
  expect_refused("full", {.save_granularity = "row"}, "pages, step");
  EXPECT_TRUE(choose("full", {}).tiers.gather_overlap);
  EXPECT_FALSE(choose("full", {.gather_overlap = "off"}).tiers.gather_overlap);
  EXPECT_EQ(choose("full", {.save_method = "gpu-direct"}).tiers.save, core::SaveMethod::kGpuDirect);
  EXPECT_EQ(choose("full", {.admission = "none"}).tiers.admission, core::Admission::kNone);
  EXPECT_EQ(choose("full", {.working_set_window = 4}).tiers.working_set_window, 4);
  EXPECT_EQ(choose("full", {.prefill = "chunked", .chunk_size = 512}).tiers.chunk_tokens, 512);
  EXPECT_EQ(choose("full", {.max_inject_tokens = 4096}).tiers.max_inject_tokens, 4096);
  const KvChoice heads = choose("full", {.heads = "h.json", .sink = 64, .local = 256});
  EXPECT_EQ(heads.sink_tokens, 64);
  EXPECT_EQ(heads.local_tokens, 256);
}

TEST(Presets, OffloadIsAFlagToo) {
  const KvChoice sparse = choose("sparse", {.host_memory = "1GiB", .admission = "working-set"});
  EXPECT_EQ(sparse.tiers.host_memory_bytes, int64_t{1} << 30);
  EXPECT_EQ(sparse.tiers.admission, core::Admission::kWorkingSet);
  expect_refused("dense", {.host_memory = "1GiB"}, "--host-memory");
  expect_refused("full", {.host_memory = "0"}, "--preset sparse");
  expect_refused("full", {.host_memory = "lots"}, "--host-memory: 'lots'");
  expect_refused("full", {.disk_path = "/d", .disk_memory = "-1GiB"}, "--disk-memory: '-1GiB'");
}

TEST(Presets, LogicalPagesDividePages) {
  EXPECT_EQ(choose("sparse", {.page_size = 16}).sparse.logical_page_tokens, 16);
  EXPECT_EQ(choose("sparse", {.page_size = 64}).sparse.logical_page_tokens, 32);
  EXPECT_EQ(choose("sparse", {.page_size = 64, .logical_page_size = 16}).sparse.logical_page_tokens,
            16);
  expect_refused("sparse", {.page_size = 16, .logical_page_size = 32}, "--logical-page-size 32");
  expect_refused("sparse", {.logical_page_size = 8}, "--logical-page-size 8");
}

TEST(Presets, ABudgetIsWholePagesWithSinkAndTail) {
  expect_refused("sparse", {.budget = 100}, "give 96 or 128");
  expect_refused("sparse", {.budget = 32}, "below 64");
  expect_refused("sparse", {.budget = 0}, "--preset dense");
  EXPECT_EQ(choose("sparse", {.budget = 64}).sparse.budget_tokens, 64);
}

TEST(Presets, AFlagThatWouldChangeNothingIsRefused) {
  expect_refused("dense", {.budget = 1024}, "--budget belongs to selection");
  expect_refused("duo", {.reuse_interval = 4, .heads = "h.json"}, "--reuse-interval");
  expect_refused("dense", {.page_stats = "min-max"}, "--preset sparse");
  expect_refused("sparse", {.sink = 64}, "--sink belongs");
  expect_refused("full", {.heads = "none", .local = 64}, "--local belongs");
  for (const KvFlags& flags :
       {KvFlags{.load_method = "uva"}, KvFlags{.save_method = "staged"},
        KvFlags{.save_granularity = "step"}, KvFlags{.admission = "working-set"},
        KvFlags{.gather_overlap = "off"}, KvFlags{.working_set_window = 4},
        KvFlags{.prefill = "layer"}, KvFlags{.max_inject_tokens = 4096}}) {
    expect_refused("sparse", flags, "needs a host tier");
  }
  EXPECT_TRUE(choose_kv("sparse", {.admission = "none", .prefill = "chunked"}).ok());
  expect_refused("full", {.chunk_size = 512}, "--chunk-size belongs");
  expect_refused("sparse-offload", {.max_inject_tokens = 512}, "--max-inject-tokens belongs");
  expect_refused("full", {.disk_path = "/kv"}, "go together");
  expect_refused("full", {.disk_path = "/kv", .disk_memory = "0"}, "--disk-memory 0");
}

// vLLM's threshold bounds what a step computes of prompts, however they are computed.
TEST(Presets, VllmsThresholdIsThePaceOfPrompts) {
  const KvFlags flags{.long_prefill_tokens = 512};
  core::TierOptions chunked = choose("sparse", flags).tiers;
  core::TierOptions layered = choose("full", flags).tiers;
  for (const bool on_gpu : {false, true}) {
    const PaceBasis basis{.num_layers = 30, .rows_max = 8192, .on_gpu = on_gpu};
    EXPECT_EQ(set_prompt_pace(flags, basis, &chunked),
              "--long-prefill-token-threshold 512 is --chunk-size 512");
    EXPECT_EQ(chunked.chunk_tokens, 512);
    EXPECT_EQ(set_prompt_pace(flags, basis, &layered),
              "--long-prefill-token-threshold 512 is --max-inject-tokens 15360 (30 layers)");
    EXPECT_EQ(layered.max_inject_tokens, 512 * 30);
  }
  expect_refused("sparse", {.chunk_size = 256, .long_prefill_tokens = 512}, "is --chunk-size here");
  expect_refused("full", {.max_inject_tokens = 256, .long_prefill_tokens = 512},
                 "is --max-inject-tokens here");
}

TEST(Presets, PromptsHaveTheSamePaceEitherWay) {
  core::TierOptions tiers = choose("full", {}).tiers;
  EXPECT_EQ(set_prompt_pace({}, {.num_layers = 30, .rows_max = 1024}, &tiers), "");
  EXPECT_EQ(tiers.chunk_tokens, 2048);
  EXPECT_EQ(tiers.max_inject_tokens, 0) << "the scheduler's default";
  const PaceBasis gpu{.num_layers = 30, .rows_max = 8192, .on_gpu = true};
  EXPECT_EQ(set_prompt_pace({}, gpu, &tiers), "");
  EXPECT_EQ(tiers.chunk_tokens, 8192);
  EXPECT_EQ(tiers.max_inject_tokens, 8192 * 30);
  const KvFlags flags{.max_inject_tokens = 4096};
  tiers = choose("full", flags).tiers;
  set_prompt_pace(flags, gpu, &tiers);
  EXPECT_EQ(tiers.max_inject_tokens, 4096);
}

TEST(Presets, UnknownNamesListTheKnownOnes) {
  expect_refused("vllm", {}, "sparse-offload, full");
  expect_refused("full", {.page_stats = "median"}, "cuboid-mean, min-max, mean-std, mean");
  expect_refused("full", {.gather_overlap = "yes"}, "expected on or off");
  expect_refused("full", {.load_method = "dma"},
                 "auto, memcpy, batched, uva, bulk, uva-page, staged");
}

}  // namespace
}  // namespace apps
