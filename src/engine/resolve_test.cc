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
  EXPECT_EQ(sizes.num_blocks, 100 * kMiB / sizes.block_bytes);
  EXPECT_EQ(sizes.kv_bytes, sizes.num_blocks * sizes.block_bytes);
  EXPECT_EQ(sizes.context_max, 8192);
  options.kv_type = core::DType::kF32;
  EXPECT_EQ(resolve(options, model(), memory()).value().block_bytes, 2 * sizes.block_bytes);
}

TEST(Resolve, TakesHalfOfWhatIsLeftAndNoMoreThanSequencesCanUse) {
  EngineOptions options;
  const ResolvedSizes half = resolve(options, model(), memory()).value();
  EXPECT_LE(half.kv_bytes, (4096 - 124) / 2 * kMiB);
  EXPECT_GT(half.kv_bytes, (4096 - 124) / 2 * kMiB - half.block_bytes);
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
  refuse([](auto& o) { o.page_tokens = 48; }, "it must be 16, 32 or 64");
  refuse([](auto& o) { o.kv_type = core::DType::kQ8_0; }, "--kv-cache-dtype is Q8_0");
  refuse([](auto& o) { o.max_model_len = 0; }, "--max-model-len is 0");
  refuse([](auto& o) { o.max_model_len = 9000; }, "lower it to 8192 or less");
  refuse([](auto& o) { o.max_num_batched_tokens = 100; },
         "raise it to 256 or lower --max-num-seqs to 100");
}

TEST(Resolve, AdviceOnMemoryWorksWhenTaken) {
  EngineOptions options;
  options.max_model_len = 8190;
  options.device_memory_bytes = 34 * kMiB;
  expect_error(options, memory(), base::Code::kTooLarge,
               "lower --max-model-len to 5120 or raise --device-memory to 40MiB");
  options.max_model_len = 5120;
  EXPECT_TRUE(resolve(options, model(), memory()).ok());
  options.max_model_len = 8190;
  options.device_memory_bytes = 40 * kMiB;
  EXPECT_TRUE(resolve(options, model(), memory()).ok());
  MemorySizes odd = memory();
  odd.workspace_bytes += 1;
  expect_error(options, odd, base::Code::kTooLarge, "raise --device-memory to 41MiB");
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
  expect_error(options, small, base::Code::kTooLarge, "raise --device-memory");
}

TEST(Resolve, TheTableHasALineForEverySize) {
  EngineOptions options;
  options.device_memory_bytes = 124 * kMiB;
  const std::string table = format_table(resolve(options, model(), memory()).value());
  for (const char* what : {"weights", "KV pages", "workspace", "staging", "total", "1600 blocks",
                           "BF16", "100 MiB", "at most 8192 tokens"}) {
    EXPECT_THAT(table, HasSubstr(what));
  }
}

}  // namespace
}  // namespace engine
