// Goal: sizes follow from options, model and memory as options.h says, and every refusal names the
// option and a value that works. Method: by hand; each advice is taken and must then succeed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/options.h"

namespace engine {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

core::ModelConfig model() {
  core::ModelConfig m;
  m.num_layers = 4;
  m.num_kv_heads = 2;
  m.head_dim = 64;
  m.context_max = 8192;
  m.vocab_size = 100;
  return m;
}

MemorySizes memory() {
  return {.available_bytes = 4096 * kMiB,
          .weights_bytes = 100 * kMiB,
          .workspace_bytes = 20 * kMiB,
          .staging_bytes = 4 * kMiB};
}

void expect_error(const EngineOptions& options, const MemorySizes& sizes, base::Code code,
                  const std::string& text) {
  const auto result = resolve(options, model(), sizes);
  ASSERT_FALSE(result.ok()) << text;
  EXPECT_EQ(result.error().code, code);
  EXPECT_THAT(result.error().message, HasSubstr(text));
}

TEST(Resolve, ABlockHoldsThePagesOfAllLayersAndHeads) {
  EngineOptions options;
  options.device_memory_bytes = 124 * kMiB;
  const ResolvedSizes sizes = resolve(options, model(), memory()).value();
  EXPECT_EQ(sizes.block_bytes, 4 * 2 * 2 * 32 * 64 * 2);
  EXPECT_EQ(sizes.tables_bytes, 256 * 8192 / 32 * 4) << "a block table a sequence";
  EXPECT_EQ(sizes.num_blocks, (100 * kMiB - sizes.tables_bytes) / sizes.block_bytes);
  EXPECT_EQ(sizes.kv_bytes, sizes.num_blocks * sizes.block_bytes);
  EXPECT_EQ(sizes.context_max, 8192);
  options.kv_type = core::DType::kF32;
  EXPECT_EQ(resolve(options, model(), memory()).value().block_bytes, 2 * sizes.block_bytes);
}

TEST(Resolve, QuantisedPagesTakeHalfAndUnfilledOnesAPlaceInBf16) {
  EngineOptions options;
  options.device_memory_bytes = 124 * kMiB;
  options.max_num_seqs = 4;
  const ResolvedSizes bf16 = resolve(options, model(), memory()).value();
  EXPECT_EQ(bf16.open_bytes, 0);
  for (const core::DType type : {core::DType::kI8, core::DType::kF8E4M3}) {
    options.kv_type = type;
    const ResolvedSizes sizes = resolve(options, model(), memory()).value();
    const int64_t scales = 64 * 4 + 64;  // K's, and V's one in a cache line
    EXPECT_EQ(sizes.block_bytes, 4 * 2 * (2 * 32 * 64 + scales));
    // A tail in each layer of a sequence; 32 pages and a second one of each sequence in a layer.
    EXPECT_EQ(sizes.open_bytes, (4 * 4 + 1024 / 32 + 4) * 2 * (2 * 32 * 64 * 2));
    EXPECT_GT(sizes.num_blocks, bf16.num_blocks * 18 / 10);
    EXPECT_LE(sizes.device_bytes, 124 * kMiB);
    EXPECT_THAT(format_table(sizes), HasSubstr("open pages"));
  }
}

TEST(Resolve, UnfilledPagesLeaveRoomForQuantisedOnes) {
  EngineOptions options;
  options.device_memory_bytes = 34 * kMiB;
  options.kv_type = core::DType::kI8;
  for (const std::optional<int32_t> length : {std::optional<int32_t>(), {1024}}) {
    options.max_model_len = length;
    const ResolvedSizes sizes = resolve(options, model(), memory()).value();
    EXPECT_GE(sizes.max_num_seqs, 16);
    EXPECT_LT(sizes.max_num_seqs, 256) << "places for their unfilled pages would take it all";
    EXPECT_LE(sizes.device_bytes, 34 * kMiB);
  }
}

TEST(Resolve, TakesHalfOfWhatIsLeftAndNoMoreThanSequencesCanUse) {
  EngineOptions options;
  const ResolvedSizes half = resolve(options, model(), memory()).value();
  EXPECT_LE(half.kv_bytes, (4096 - 124) / 2 * kMiB);
  EXPECT_GT(half.kv_bytes, (4096 - 124) / 2 * kMiB - half.tables_bytes - half.block_bytes);
  options.max_num_seqs = 2;
  EXPECT_EQ(resolve(options, model(), memory()).value().num_blocks, 2 * 8192 / 32);
}

TEST(Resolve, WithoutAChosenLengthTheContextIsWhatThePagesHold) {
  EngineOptions options;
  options.device_memory_bytes = 34 * kMiB;
  const ResolvedSizes sizes = resolve(options, model(), memory()).value();
  EXPECT_EQ(sizes.context_max, sizes.num_blocks * 32);
  EXPECT_LT(sizes.context_max, 8192);
}

TEST(Resolve, RefusesOptionsOutsideTheirRange) {
  const auto refuse = [](auto change, const char* text) {
    EngineOptions options;
    change(options);
    expect_error(options, memory(), base::Code::kInvalidArgument, text);
  };
  refuse([](auto& o) { o.max_num_seqs = 0; }, "--max-num-seqs is 0");
  refuse([](auto& o) { o.max_num_batched_tokens = 70000; }, "between 1 and 65536");
  refuse([](auto& o) { o.inbox_capacity = 0; }, "--max-num-queued-reqs is 0");
  refuse([](auto& o) { o.inbox_tokens = -1; }, "--max-num-queued-tokens is -1");
  refuse([](auto& o) { o.page_tokens = 48; }, "it must be 16, 32 or 64");
  refuse([](auto& o) { o.kv_type = core::DType::kQ8_0; }, "--kv-cache-dtype is Q8_0");
  refuse([](auto& o) { o.max_model_len = 0; }, "--max-model-len is 0");
  refuse([](auto& o) { o.max_model_len = 9000; }, "lower it to 8192 or less");
  refuse([](auto& o) { o.max_num_batched_tokens = 100; },
         "raise it to 256 or lower --max-num-seqs to 100");
}

// The number behind `words` in a message.
int64_t number_behind(const std::string& message, const std::string& words) {
  const size_t at = message.find(words);
  EXPECT_NE(at, std::string::npos) << message;
  return at == std::string::npos ? 0 : std::stoll(message.substr(at + words.size()));
}

TEST(Resolve, AdviceOnMemoryWorksWhenTaken) {
  for (const auto& [more_bytes, type] :
       {std::pair{0, core::DType::kBF16}, {1, core::DType::kBF16}, {1, core::DType::kI8}}) {
    MemorySizes odd = memory();
    odd.workspace_bytes += more_bytes;
    EngineOptions options;
    options.max_model_len = 8190;
    options.kv_type = type;
    options.device_memory_bytes = type == core::DType::kBF16 ? 34 * kMiB : 30 * kMiB;
    expect_error(options, odd, base::Code::kTooLarge, "lower --max-model-len to");
    const std::string message = resolve(options, model(), odd).error().message;
    const int64_t length = number_behind(message, "--max-model-len to ");
    const int64_t mib = number_behind(message, "--device-memory to ");
    options.max_model_len = static_cast<int32_t>(length);
    EXPECT_TRUE(resolve(options, model(), odd).ok()) << message;
    options.max_model_len = static_cast<int32_t>(length + 32);
    EXPECT_FALSE(resolve(options, model(), odd).ok()) << message;
    options.max_model_len = 8190;
    options.device_memory_bytes = mib * kMiB;
    EXPECT_TRUE(resolve(options, model(), odd).ok()) << message;
    // With quantised KV more memory also means more open pages: there the advice is a little more.
    const int64_t spare = type == core::DType::kBF16 ? 1 : 2 + mib / 64;
    options.device_memory_bytes = (mib - spare) * kMiB;
    EXPECT_FALSE(resolve(options, model(), odd).ok()) << message;
  }
}

TEST(Resolve, AdviceOnRowsWorksWhenTaken) {
  const auto at = [](int64_t available) {
    return [available](int32_t rows) {
      MemorySizes sizes = memory();
      sizes.available_bytes = available;
      sizes.workspace_bytes = rows * kMiB / 8;  // of 1024 rows 128 MiB
      return sizes;
    };
  };
  struct Case {
    int64_t available_mib, device_mib;
    int32_t model_len;
  };
  for (const Case& c : {Case{150, 0, 0},
                        {150, 0, 1024},
                        {110, 0, 8192},
                        {4096, 20, 0},
                        {4096, 132, 4096},
                        {180, 20, 0}}) {
    const auto memory_of = at(c.available_mib * kMiB);
    MemorySizes sizes = memory_of(1024);
    sizes.with_rows = memory_of;
    EngineOptions options;
    options.max_num_batched_tokens = 1024;
    if (c.device_mib > 0) options.device_memory_bytes = c.device_mib * kMiB;
    if (c.model_len > 0) options.max_model_len = c.model_len;
    const auto refused = resolve(options, model(), sizes);
    ASSERT_FALSE(refused.ok());
    const std::string message = refused.error().message;
    EngineOptions fewer = options;
    const auto rows = static_cast<int32_t>(
        number_behind(message, "lower --max-num-batched-tokens from 1024 to "));
    fewer.max_num_batched_tokens = rows;
    fewer.max_num_seqs = std::min(options.max_num_seqs, rows);
    const bool shorter = message.find("--max-model-len to ") != std::string::npos;
    EXPECT_EQ(shorter, c.available_mib == 110) << message;
    const int32_t least = shorter ? 1024 : c.model_len > 0 ? 1 : 4096;
    if (shorter)
      fewer.max_model_len = static_cast<int32_t>(number_behind(message, "--max-model-len to "));
    const auto taken = resolve(fewer, model(), memory_of(rows));
    ASSERT_TRUE(taken.ok()) << message;
    EXPECT_GE(taken->context_max, least);
    fewer.max_num_batched_tokens = rows + 1;
    fewer.max_num_seqs = std::min(options.max_num_seqs, rows + 1);
    fewer.max_model_len = shorter ? std::nullopt : options.max_model_len;
    const auto more = resolve(fewer, model(), memory_of(rows + 1));
    EXPECT_TRUE(!more.ok() || more->context_max < least) << message;
    const bool raises = message.find("raise it to ") != std::string::npos;
    EXPECT_EQ(raises, c.device_mib > 0 && c.available_mib > 1000) << message;
    if (!raises) continue;
    options.device_memory_bytes = number_behind(message, "raise it to ") * kMiB;
    EXPECT_TRUE(resolve(options, model(), sizes).ok()) << message;
  }
}

TEST(Resolve, AdvisesNoMoreMemoryThanThereIs) {
  EngineOptions options;
  options.max_model_len = 8192;
  MemorySizes sizes = memory();
  sizes.available_bytes = 140 * kMiB;
  expect_error(options, sizes, base::Code::kTooLarge, "lower --max-model-len to ");
  EXPECT_THAT(resolve(options, model(), sizes).error().message,
              ::testing::Not(HasSubstr("raise --device-memory")));
}

TEST(Resolve, SaysWhenNothingIsLowEnough) {
  EngineOptions options;
  MemorySizes sizes = memory();
  sizes.available_bytes = 90 * kMiB;
  sizes.with_rows = [sizes](int32_t) { return sizes; };
  expect_error(options, sizes, base::Code::kTooLarge, "machine: take a smaller model");
  options.device_memory_bytes = kMiB;
  expect_error(options, sizes, base::Code::kTooLarge, "them: take a smaller model");
  options.device_memory_bytes.reset();
  sizes.available_bytes = 100 * kMiB + 1000;  // no step is so small
  sizes.with_rows = [sizes](int32_t) { return sizes; };
  expect_error(options, sizes, base::Code::kTooLarge, "machine: take a smaller model");
  options.device_memory_bytes = 100;
  expect_error(options, sizes, base::Code::kTooLarge, "is enough, take a smaller model");
}

TEST(Resolve, RefusesWhatTheMachineDoesNotHave) {
  EngineOptions options;
  options.device_memory_bytes = 5000 * kMiB;
  expect_error(options, memory(), base::Code::kTooLarge, "lower it to 3996MiB or less");
  options.device_memory_bytes = 20 * kMiB;
  expect_error(options, memory(), base::Code::kTooLarge, "leaves nothing for KV pages");
  options.device_memory_bytes.reset();
  MemorySizes small = memory();
  small.available_bytes = 110 * kMiB;
  expect_error(options, small, base::Code::kTooLarge, "take a smaller model");
  small.available_bytes = 124 * kMiB + 1000;
  expect_error(options, small, base::Code::kTooLarge, "are there: give a host tier");
}

// The shape of the test model longneedle, whose KV is 8 KiB a token.
core::ModelConfig long_model() {
  core::ModelConfig m;
  m.num_layers = 8;
  m.num_kv_heads = 2;
  m.head_dim = 128;
  m.model_dim = 512;
  m.context_max = 131072;
  m.vocab_size = 8192;
  return m;
}

EngineOptions full_options() {
  EngineOptions options;
  options.sparse.budget_tokens = 2048;
  options.tiers.host_memory_bytes = 0;
  options.tiers.admission = core::Admission::kWorkingSet;
  options.tiers.prefill = core::Prefill::kLayer;
  options.max_num_seqs = 64;
  return options;
}

MemorySizes long_memory() {
  return {.available_bytes = 12288 * kMiB,
          .weights_bytes = 28 * kMiB,
          .workspace_bytes = 22 * kMiB,
          .staging_bytes = 2 * kMiB,
          .num_threads = 2};
}

int64_t sum_of_device(const ResolvedSizes& s) {
  return s.num_frames * s.frame_bytes + s.ring_bytes + s.stats_bytes + s.open_bytes +
         s.tables_bytes + s.scratch_bytes + s.activation_bytes + s.workspace_bytes +
         s.staging_bytes + (s.num_frames > 0 ? 0 : s.kv_bytes);
}

TEST(Resolve, TiersServeMoreThanTheDeviceHolds) {
  EngineOptions options = full_options();
  options.device_memory_bytes = 192 * kMiB;
  const ResolvedSizes full = resolve(options, long_model(), long_memory()).value();
  EXPECT_GE(full.context_max, 33000) << format_table(full);
  EXPECT_LE(full.device_bytes, 192 * kMiB);
  EXPECT_EQ(full.device_bytes, sum_of_device(full));
  EXPECT_LE(full.stats_bytes, 48 * kMiB);
  EXPECT_GE(full.num_blocks, full.context_max / 32);
  EXPECT_EQ(full.host_bytes, full.num_blocks * full.block_bytes);
  // Two layer buffers of the longest prompt, each an eighth of its pages, and the tail's row.
  const int32_t pages = (full.context_max + 31) / 32;
  EXPECT_GE(full.num_frames, 2 * ((pages * 2 + 15) / 16) + 1);
  EXPECT_GE(full.activation_bytes, int64_t{full.context_max} * 512 * 4);
  options.sparse.budget_tokens = 0;
  options.tiers = {};
  const ResolvedSizes dense = resolve(options, long_model(), long_memory()).value();
  EXPECT_LT(dense.context_max, 22000) << "8 KiB a token";
  EXPECT_EQ(dense.device_bytes, sum_of_device(dense));
}

TEST(Resolve, WithRoomAllPagesHaveFramesAndHomes) {
  EngineOptions options = full_options();
  options.max_num_seqs = 1;
  options.max_model_len = 8192;
  const ResolvedSizes sizes = resolve(options, long_model(), long_memory()).value();
  EXPECT_EQ(sizes.num_blocks, 8192 / 32);
  EXPECT_EQ(sizes.num_frames, 8192 / 32);
  EXPECT_EQ(sizes.context_max, 8192);
}

TEST(Resolve, ChunkedPromptsNeedAllTheirPagesInFrames) {
  EngineOptions options = full_options();
  options.tiers.prefill = core::Prefill::kChunked;
  options.device_memory_bytes = 192 * kMiB;
  const ResolvedSizes sizes = resolve(options, long_model(), long_memory()).value();
  EXPECT_LT(sizes.context_max, 22000);
  EXPECT_GE(sizes.num_frames, sizes.context_max / 32);
  EXPECT_EQ(sizes.activation_bytes, 0);
}

TEST(Resolve, AdviceOnTiersWorksWhenTaken) {
  EngineOptions options = full_options();
  options.max_model_len = 65536;
  options.device_memory_bytes = 192 * kMiB;
  auto refused = resolve(options, long_model(), long_memory());
  ASSERT_FALSE(refused.ok());
  const std::string message = refused.error().message;
  options.device_memory_bytes = number_behind(message, "--device-memory to ") * kMiB;
  EXPECT_TRUE(resolve(options, long_model(), long_memory()).ok());
  options.device_memory_bytes = 192 * kMiB;
  options.max_model_len = static_cast<int32_t>(number_behind(message, "--max-model-len to "));
  EXPECT_TRUE(resolve(options, long_model(), long_memory()).ok());
  options.tiers.host_memory_bytes = 64 * kMiB;
  EXPECT_THAT(resolve(options, long_model(), long_memory()).error().message,
              HasSubstr("raise --host-memory to"));
  options.tiers.host_memory_bytes = 20000 * kMiB;
  EXPECT_THAT(resolve(options, long_model(), long_memory()).error().message,
              HasSubstr("lower it to 12068MiB or less"));
}

TEST(Resolve, RingsReplaceBlocksOfStreamingHeads) {
  EngineOptions options;
  options.max_num_seqs = 1;
  options.max_model_len = 32768;
  options.device_memory_bytes = 2048 * kMiB;
  const ResolvedSizes dense = resolve(options, long_model(), long_memory()).value();
  options.heads = {.num_layers = 8, .num_kv_heads = 2, .kinds = {}};
  for (int32_t layer = 0; layer < 8; ++layer) {
    options.heads.kinds.push_back({.sink = 128, .local = 1024});
    options.heads.kinds.push_back({});
  }
  EXPECT_EQ(resolve(options, long_model(), long_memory())->block_bytes, dense.block_bytes)
      << "a prefix cache needs the pages of every head";
  options.prefix_cache = false;
  const ResolvedSizes half = resolve(options, long_model(), long_memory()).value();
  EXPECT_EQ(half.block_bytes, dense.block_bytes / 2);
  EXPECT_EQ(half.num_rings, 1);
  EXPECT_LT(half.ring_bytes + 1024 * half.block_bytes, 0.55 * 1024 * dense.block_bytes);
  options.max_num_seqs = 256;
  const ResolvedSizes many = resolve(options, long_model(), long_memory()).value();
  EXPECT_LT(many.num_rings, 256);
  EXPECT_GT(many.num_rings, 50);
  EXPECT_EQ(many.max_num_seqs, many.num_rings);
  EXPECT_LE(many.device_bytes, 2048 * kMiB);
  for (core::HeadKind& kind : options.heads.kinds) kind.local = 1024;
  EXPECT_FALSE(resolve(options, long_model(), long_memory()).ok()) << "no retrieval head";
}

TEST(Resolve, RowsOfQuantisedKvDoNotGoHomeByThemselves) {
  EngineOptions options = full_options();
  options.tiers.save_granularity = core::SaveGranularity::kStep;
  EXPECT_TRUE(resolve(options, long_model(), long_memory()).ok());
  options.kv_type = core::DType::kI8;
  const auto refused = resolve(options, long_model(), long_memory());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("--save-granularity pages"));
}

TEST(Resolve, ABudgetNeedsAHeadThatSelects) {
  EngineOptions options = full_options();
  const int32_t layers = long_model().num_layers, heads = long_model().num_kv_heads;
  options.sparse.dense_layers = layers - 1;
  EXPECT_TRUE(resolve(options, long_model(), long_memory()).ok());
  options.heads = {.num_layers = layers, .num_kv_heads = heads, .kinds = {}};
  options.heads.kinds.resize(static_cast<size_t>(layers * heads));
  std::fill(options.heads.kinds.end() - heads, options.heads.kinds.end(),
            core::HeadKind{.sink = 64, .local = 256});
  for (const bool tiered : {true, false}) {
    if (!tiered) options.tiers = {};
    const auto streaming = resolve(options, long_model(), long_memory());
    ASSERT_FALSE(streaming.ok()) << "the last layer streams, those before it are dense";
    EXPECT_THAT(streaming.error().message, HasSubstr("--dense-layers"));
  }
  options = full_options();
  options.sparse.dense_layers = layers;
  EXPECT_FALSE(resolve(options, long_model(), long_memory()).ok());
}

TEST(Resolve, EveryContextThatFitsGetsItsRows) {
  for (const int64_t mib : {64, 100, 150, 200, 400, 1000}) {
    for (const int64_t homes : {0, 300, 2000}) {
      EngineOptions options = full_options();
      options.device_memory_bytes = mib * kMiB;
      options.tiers.host_memory_bytes = homes * kMiB;
      const auto sizes = resolve(options, long_model(), long_memory());
      ASSERT_TRUE(sizes.ok()) << sizes.error().message;
      EXPECT_LE(sizes->device_bytes, mib * kMiB);
      EXPECT_EQ(sizes->device_bytes, sum_of_device(*sizes));
      EXPECT_LE(sizes->num_frames, sizes->num_blocks);
      if (homes > 0) {
        EXPECT_LE(sizes->host_bytes, homes * kMiB);
      }
      const int32_t pages = (sizes->context_max + 31) / 32;
      EXPECT_GE(sizes->num_blocks, pages);
      EXPECT_GE(sizes->num_frames, std::min(pages, 2 * ((pages * 2 + 15) / 16) + 1));
    }
  }
}

// Llama-3.1-8B's shape on a GPU with 139 GiB free, 16 steps' worth of logits beside it.
core::ModelConfig model_8b() {
  core::ModelConfig m;
  m.num_layers = 32;
  m.num_kv_heads = 8;
  m.head_dim = 128;
  m.model_dim = 4096;
  m.context_max = 131072;
  m.vocab_size = 128256;
  return m;
}

MemorySizes gpu_memory() {
  return {.available_bytes = 139 * 1024 * kMiB,
          .weights_bytes = 15317 * kMiB,
          .workspace_bytes = 240 * kMiB,
          .staging_bytes = 60 * kMiB,
          .host_available_bytes = 120 * 1024 * kMiB,
          .runtime_bytes = 1024 * kMiB};
}

int64_t for_kv(const ResolvedSizes& s) {
  return s.device_bytes - s.activation_bytes - s.workspace_bytes - s.staging_bytes;
}

TEST(Resolve, AGpusMemoryIsAllItsOwnAndLeavesCudaIts) {
  EngineOptions options;
  options.max_num_seqs = 64;
  const ResolvedSizes s = resolve(options, model_8b(), gpu_memory()).value();
  EXPECT_LE(s.weights_bytes + s.device_bytes + s.runtime_bytes, gpu_memory().available_bytes);
  EXPECT_GT(s.weights_bytes + s.device_bytes + s.runtime_bytes,
            gpu_memory().available_bytes - s.block_bytes);
  EXPECT_EQ(s.device_bytes, sum_of_device(s));
  EXPECT_THAT(format_table(s), HasSubstr("1.00 GiB  left free for kernels"));
  options.device_memory_bytes = 130 * 1024 * kMiB;
  const std::string why = resolve(options, model_8b(), gpu_memory()).error().message;
  EXPECT_THAT(why, HasSubstr("1.00 GiB for CUDA itself is over the 139 GiB that the GPU has free"));
  options.device_memory_bytes = number_behind(why, "lower it to ") * kMiB;
  EXPECT_TRUE(resolve(options, model_8b(), gpu_memory()).ok()) << why;
  options.device_memory_bytes = *options.device_memory_bytes + kMiB;
  EXPECT_FALSE(resolve(options, model_8b(), gpu_memory()).ok()) << why;
}

TEST(Resolve, AGpusHostTierIsWhatTheHostHasFree) {
  EngineOptions options = full_options();
  options.tiers.host_memory_bytes = 200 * 1024 * kMiB;
  const std::string why = resolve(options, model_8b(), gpu_memory()).error().message;
  EXPECT_THAT(why, HasSubstr("over the 120 GiB that the host has free"));
  options.tiers.host_memory_bytes = number_behind(why, "lower it to ") * kMiB;
  const ResolvedSizes s = resolve(options, model_8b(), gpu_memory()).value();
  EXPECT_LE(s.host_bytes, 120 * 1024 * kMiB);
  EXPECT_EQ(s.device_bytes, sum_of_device(s));
}

TEST(Resolve, APromptOf128kRunsOnAGpuWithTwoGiBForKv) {
  EngineOptions options = full_options();
  options.max_num_seqs = 1;
  options.max_model_len = 131072;
  options.device_memory_bytes = 5 * 1024 * kMiB;
  const ResolvedSizes most = resolve(options, model_8b(), gpu_memory()).value();
  options.device_memory_bytes = 2048 * kMiB + most.device_bytes - for_kv(most);
  const auto sizes = resolve(options, model_8b(), gpu_memory());
  ASSERT_TRUE(sizes.ok()) << sizes.error().message;
  EXPECT_LE(for_kv(sizes.value()), 2048 * kMiB) << format_table(sizes.value());
  EXPECT_EQ(sizes.value().device_bytes, sum_of_device(sizes.value()));
}

TEST(Resolve, TheTableHasALineForEverySize) {
  EngineOptions options;
  options.device_memory_bytes = 124 * kMiB;
  const std::string table = format_table(resolve(options, model(), memory()).value());
  for (const char* what : {"weights", "KV pages", "workspace", "staging", "total", "1596 blocks",
                           "BF16", "tables", "124 MiB", "at most 8192 tokens"}) {
    EXPECT_THAT(table, HasSubstr(what));
  }
}

}  // namespace
}  // namespace engine
