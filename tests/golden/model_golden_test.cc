// Logits of tiny random models and of longneedle equal those that transformers computed
// (tests/golden/make_model_golden.py).
//
// Each model runs as one prompt, in odd chunks, and teacher-forced one token a step, on every
// instruction set of this processor. F32 weights and KV: within 1e-4 on all of them. Quantised: the
// reference op within 1e-4, the fast paths within the bound below.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "golden_arrays.h"
#include "model_runner.h"

namespace {

using core::DType;
using core::RowKind;
using device::Isa;
using golden::data;
using golden::golden_tokens;
using golden::isas;
using golden::read_array;
using golden::Runner;
using golden::worst_difference;

struct Case {
  const char* name;
  const char* path;      // below tests/data/models
  float fast_tolerance;  // of the AVX paths; the reference is always held to 1e-4
};

// Fast paths: F32 and F16 weights are float arithmetic. BF16 weights round activations to BF16 on
// AVX-512. Quantised weights round activations to 16-bit integers.
constexpr Case kCases[] = {
    {"llama_g1", "llama_g1", 1e-4f},
    {"llama_g3", "llama_g3", 1e-4f},
    {"llama_g3_gguf", "llama_g3/model.gguf", 1e-4f},
    {"llama_g4_d80", "llama_g4_d80", 1e-4f},
    {"llama_g8", "llama_g8", 1e-4f},
    {"llama_g4_d128_tied", "llama_g4_d128_tied", 1e-4f},
    {"llama_bias", "llama_bias", 1e-4f},
    {"llama_linear", "llama_linear", 1e-4f},
    {"llama_llama3", "llama_llama3", 1e-4f},
    {"llama_yarn", "llama_yarn", 1e-4f},
    {"llama_yarn_options", "llama_yarn_options", 1e-4f},
    {"mistral", "mistral", 1e-4f},
    {"qwen2", "qwen2", 1e-4f},
    {"qwen2_gguf", "qwen2/model.gguf", 1e-4f},
    {"qwen2_g4", "qwen2_g4", 1e-4f},
    {"qwen3", "qwen3", 1e-4f},
    {"qwen3_gguf", "qwen3/model.gguf", 1e-4f},
    {"qwen3_tied_d128", "qwen3_tied_d128", 1e-4f},
    {"gemma3", "gemma3", 1e-4f},
    {"gemma3_gguf", "gemma3/model.gguf", 1e-4f},
    {"gemma3_d256", "gemma3_d256", 1e-4f},
    {"f16", "f16", 1e-4f},
    {"bf16_sharded", "bf16_sharded", 2e-1f},
    {"mixed_quants", "mixed_quants/model.gguf", 2e-3f},
};

class TinyModel : public testing::TestWithParam<Case> {};

TEST_P(TinyModel, EqualsTransformers) {
  const Case& c = GetParam();
  const std::string path = data(std::string("tests/data/models/") + c.path);
  const std::string folder = std::filesystem::is_directory(path)
                                 ? path
                                 : std::filesystem::path(path).parent_path().string();
  const std::vector<float> expected = read_array<float>(folder + "/logits.f32");
  for (Isa isa : isas()) {
    SCOPED_TRACE(device::isa_name(isa));
    const float tolerance = isa == Isa::kReference ? 1e-4f : c.fast_tolerance;
    Runner runner(path, isa, DType::kF32, 64, 64);
    const std::vector<int32_t> ids = golden_tokens(64, runner.vocab());
    const std::vector<float> whole = runner.run(ids, 64, RowKind::kPrompt);
    EXPECT_LT(worst_difference(whole, expected), tolerance);
    EXPECT_EQ(worst_difference(runner.run(ids, 7, RowKind::kPrompt), whole), 0.0f)
        << "chunks of 7 change bits";
    EXPECT_LT(worst_difference(runner.run(ids, 1, RowKind::kDecode), expected), tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TinyModel, testing::ValuesIn(kCases),
                         [](const auto& c) { return std::string(c.param.name); });

TEST(TinyModel, RowsThatWaitBetweenLayersChangeNoBit) {
  for (const char* name : {"llama_g3", "qwen2", "qwen3", "gemma3"}) {
    Runner runner(data(std::string("tests/data/models/") + name), device::detect_isa(),
                  DType::kBF16, 64, 64);
    const std::vector<int32_t> ids = golden_tokens(64, runner.vocab());
    const std::vector<float> whole = runner.run(ids, 64, RowKind::kPrompt);
    runner.split_layers(1);
    EXPECT_EQ(worst_difference(runner.run(ids, 64, RowKind::kPrompt), whole), 0.0f) << name;
    EXPECT_EQ(worst_difference(runner.run(ids, 7, RowKind::kPrompt), whole), 0.0f) << name;
  }
}

TEST(TinyModel, GgufAndHuggingFaceFilesGiveTheSameBits) {
  for (const char* name : {"llama_g3", "qwen2", "qwen3", "gemma3"}) {
    const std::string folder = data(std::string("tests/data/models/") + name);
    Runner hf(folder, device::detect_isa(), DType::kBF16, 64, 64),
        gguf(folder + "/model.gguf", device::detect_isa(), DType::kBF16, 64, 64);
    const std::vector<int32_t> ids = golden_tokens(64, hf.vocab());
    EXPECT_EQ(
        worst_difference(hf.run(ids, 64, RowKind::kPrompt), gguf.run(ids, 64, RowKind::kPrompt)),
        0.0f)
        << name;
  }
}

// Positions 63, 127, ... 2047 in full, every position by its likeliest token and normaliser.
void check_longneedle(Isa isa, DType kv_type, float tolerance) {
  SCOPED_TRACE(device::isa_name(isa));
  Runner runner(data("models/longneedle/longneedle-q8_0.gguf"), isa, kv_type, 512, 2048);
  const std::string folder = data("tests/data/models/longneedle");
  const auto ids = read_array<int32_t>(folder + "/tokens.i32");
  const auto logits = read_array<float>(folder + "/logits.f32");
  const auto argmax = read_array<int32_t>(folder + "/argmax.i32");
  const auto logsumexp = read_array<float>(folder + "/logsumexp.f32");
  const size_t vocab = static_cast<size_t>(runner.vocab());
  const std::vector<float> all = runner.run(ids, 512, RowKind::kPrompt);
  ASSERT_EQ(all.size(), ids.size() * vocab);
  float worst = 0, worst_sum = 0;
  int64_t other_argmax = 0;
  for (size_t p = 0; p < ids.size(); ++p) {
    std::span<const float> row(all.data() + p * vocab, vocab);
    if (p % 64 == 63)
      worst = std::max(worst, worst_difference(row, {logits.data() + p / 64 * vocab, vocab}));
    const float top = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (float l : row) sum += std::exp(static_cast<double>(l - top));
    worst_sum =
        std::max(worst_sum, std::fabs(static_cast<float>(top + std::log(sum)) - logsumexp[p]));
    if (row[static_cast<size_t>(argmax[p])] < top - tolerance) ++other_argmax;
  }
  EXPECT_LT(worst, tolerance);
  EXPECT_LT(worst_sum, tolerance);
  EXPECT_EQ(other_argmax, 0);
}

TEST(LongNeedle, EqualsTransformersOver2kTokens) {
  for (Isa isa : isas()) {
    if (isa != Isa::kReference) check_longneedle(isa, DType::kF32, 2e-2f);
  }
  check_longneedle(device::detect_isa(), DType::kBF16, 0.5f);
}

}  // namespace
