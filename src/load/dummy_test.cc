// Dummy weights: the right shapes from config.json alone, the same for the same seed, never zero,
// of the variance that keeps activations finite; and the summary that people read of such a model.
#include "load/dummy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>

#include "load/describe.h"
#include "load/safetensors_test_writer.h"

namespace load {
namespace {

using testing::HasSubstr;

std::unique_ptr<ModelFiles> make(const std::string& json, uint64_t seed,
                                 core::DType type = core::DType::kBF16) {
  TemporaryFolder folder;
  folder.write("config.json", json);
  auto model = open_model(folder.path() + "/config.json", LoadFormat::kDummy, seed, type);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(model).value();
}

std::vector<float> values(const Tensor& tensor) {
  std::vector<float> out(tensor.bytes.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, tensor.bytes.data() + 2 * i, sizeof(bits));
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  return out;
}

TEST(Dummy, ShapesAndDeterminism) {
  const auto a = make(config_json("qwen3"), 7), b = make(config_json("qwen3"), 7),
             c = make(config_json("qwen3"), 8);
  EXPECT_EQ(a->tensors.size(), 2 * 11 + 3u);
  EXPECT_FALSE(a->has_tokenizer);
  int64_t bytes = 0;
  for (const auto& [name, tensor] : a->tensors) {
    EXPECT_EQ(tensor.type, core::DType::kBF16);
    EXPECT_EQ(tensor.file, nullptr);
    EXPECT_EQ(values(tensor), values(b->tensors.at(name))) << name;
    bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  EXPECT_EQ(bytes, a->weight_bytes);
  EXPECT_NE(values(a->tensors.at("output")), values(c->tensors.at("output")));
  EXPECT_NE(values(a->tensors.at("blk.0.attn_q")), values(a->tensors.at("blk.1.attn_q")));
}

TEST(Dummy, VarianceIsOneOverFanIn) {
  std::string wide = config_json("qwen2");
  wide.replace(wide.find("\"intermediate_size\":48"), 22, "\"intermediate_size\":4096");
  const auto model = make(wide, 1);
  for (const char* name : {"blk.0.ffn_down", "blk.1.ffn_gate"}) {
    const Tensor& tensor = model->tensors.at(name);
    double sum = 0, squares = 0;
    const std::vector<float> all = values(tensor);
    for (float v : all) {
      ASSERT_TRUE(std::isfinite(v) && v != 0);
      sum += v;
      squares += static_cast<double>(v) * v;
    }
    const double n = static_cast<double>(all.size()), fan_in = static_cast<double>(tensor.shape[1]);
    EXPECT_NEAR(squares / n * fan_in, 1.0, 0.05) << name;
    EXPECT_NEAR(sum / n * std::sqrt(fan_in), 0.0, 0.05) << name;
  }
  for (float v : values(model->tensors.at("blk.0.ffn_norm"))) EXPECT_EQ(v, 1.0f);
  for (float v : values(model->tensors.at("blk.0.attn_q_bias")))
    EXPECT_TRUE(v != 0 && std::fabs(v) < 0.2f);
}

// REQUIRES: a half of ordinary size.
float half_at(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  const uint32_t exponent = bits >> 10 & 31;
  EXPECT_TRUE(exponent > 0 && exponent < 31) << bits;
  return std::bit_cast<float>(static_cast<uint32_t>(bits & 0x8000) << 16 | (exponent + 112) << 23 |
                              static_cast<uint32_t>(bits & 0x3FF) << 13);
}

// Codes of every type times what its block multiplies them by, less its minimum.
TEST(Dummy, QuantisedMatricesHaveThatVarianceToo) {
  std::string wide = config_json("qwen2");
  wide.replace(wide.find("\"intermediate_size\":48"), 22, "\"intermediate_size\":4096");
  for (const auto& [type, half, scale, code_mean] : {std::tuple{core::DType::kQ8_0, 0, 1.0f, 0.0f},
                                                     {core::DType::kQ4_0, 0, 1.0f, 8.0f},
                                                     {core::DType::kQ4_1, 0, 1.0f, 7.5f},
                                                     {core::DType::kQ4_K, 0, 8.0f, 7.5f},
                                                     {core::DType::kQ6_K, 208, 4.0f, 32.0f}}) {
    const core::DTypeInfo& info = core::info(type);
    SCOPED_TRACE(info.name);
    const auto model = make(wide, 1, type), again = make(wide, 1, type);
    const Tensor& down = model->tensors.at("blk.0.ffn_down");
    EXPECT_EQ(down.type, type);
    EXPECT_EQ(model->tensors.at("output_norm").type, core::DType::kBF16);
    // Rows of 32.
    EXPECT_EQ(model->tensors.at("blk.0.ffn_gate").type,
              info.block_elements == 32 ? type : core::DType::kBF16);
    ASSERT_EQ(static_cast<int64_t>(down.bytes.size()),
              down.shape[0] * core::row_bytes(type, down.shape[1]));
    EXPECT_TRUE(std::ranges::equal(down.bytes, again->tensors.at("blk.0.ffn_down").bytes));
    const float d = half_at(&down.bytes[static_cast<size_t>(half)]) * scale;
    const float deviation = type == core::DType::kQ8_0   ? 73.9f
                            : type == core::DType::kQ6_K ? 18.47f
                                                         : 4.61f;
    EXPECT_NEAR(d * deviation * 64, 1.0f, 0.01f);
    if (type == core::DType::kQ4_1) {
      EXPECT_NEAR(half_at(&down.bytes[2]), -code_mean * d, 1e-4f);
    } else if (type == core::DType::kQ4_K) {
      EXPECT_NEAR(half_at(&down.bytes[2]) * 8, code_mean * d, 1e-4f);
    }
  }
}

TEST(Dummy, RefusesMoreThanTheMachineHas) {
  TemporaryFolder folder;
  folder.write(
      "config.json",
      R"({"model_type":"llama","hidden_size":262144,"intermediate_size":1048576,"num_hidden_layers":4096,
      "num_attention_heads":1024,"num_key_value_heads":8,"head_dim":256,"vocab_size":16777216,"max_position_embeddings":4096})");
  auto model = open_model(folder.path(), LoadFormat::kDummy, 1);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, base::Code::kTooLarge);
  EXPECT_THAT(model.error().message, HasSubstr("dummy weights need"));
}

TEST(Describe, SaysWhatMatters) {
  const auto model = make(
      config_json("qwen2", R"(,"rope_scaling":{"type":"yarn","factor":4.0},"eos_token_id":[2,3])"),
      1);
  const std::string text = describe(*model);
  for (const char* part :
       {"architecture  qwen2", "2 heads over 1 KV heads of 16", "biases on q, k, v",
        "yarn x4 from 4096 tokens", "context       16384 tokens", "BF16     27 tensors",
        "eos           2, 3", "tokenizer     none", "KV cache      128 B a token"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace load
