// Random blocks of every type that stays quantised on a GPU, packed into units and read back as
// numbers: exactly what the reference dequantises, for odd numbers of outputs and of inputs; what
// is past them is zero.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "ops/cuda/quantised.h"
#include "ops/cuda/quantised_unit.h"
#include "ops/reference/dequantize.h"

namespace ops::cuda {
namespace {

constexpr core::DType kTypes[] = {core::DType::kQ8_0, core::DType::kQ4_0, core::DType::kQ4_1,
                                  core::DType::kQ4_K, core::DType::kQ6_K};

class QuantisedPack : public testing::TestWithParam<core::DType> {};

TEST_P(QuantisedPack, HoldsWhatTheReferenceReads) {
  const core::DType type = GetParam();
  const int64_t block = core::info(type).block_elements;
  std::mt19937 random(7);
  for (const int64_t cols : {block, 3 * block, 5 * block}) {
    for (const int outputs : {16, 8, 1}) {
      const auto row_bytes = static_cast<size_t>(core::row_bytes(type, cols));
      std::vector<std::byte> stored(static_cast<size_t>(outputs) * row_bytes);
      for (std::byte& b : stored) b = static_cast<std::byte>(random() & 0xff);
      // Halves that are NaN or infinite compare as nothing: clear the exponents' top bits.
      for (size_t row = 0; row < static_cast<size_t>(outputs); ++row) {
        for (size_t at = 0; at < row_bytes; at += core::info(type).block_bytes) {
          std::byte* b = &stored[row * row_bytes + at];
          const size_t d = type == core::DType::kQ6_K ? 208 : 0;
          b[d + 1] &= std::byte{0xbf};
          if (type == core::DType::kQ4_1 || type == core::DType::kQ4_K) b[3] &= std::byte{0xbf};
        }
      }
      std::array<const std::byte*, 16> rows{};
      for (size_t i = 0; i < static_cast<size_t>(outputs); ++i) rows[i] = &stored[i * row_bytes];
      std::vector<std::byte> packed(static_cast<size_t>(quantised_bytes(type, 16, cols)),
                                    std::byte{0xff});
      pack_quantised(type, rows, cols, packed.data());
      std::vector<float> expected(static_cast<size_t>(cols));
      for (int output = 0; output < 16; ++output) {
        if (output < outputs) {
          reference::dequantize_row(type, rows[static_cast<size_t>(output)], cols, expected.data());
        }
        for (int64_t i = 0; i < (cols + 127) / 128 * 128; i += 8) {
          const auto group = static_cast<int>(i % 128 / 32), c = static_cast<int>(i % 32 / 8);
          float got[8];
          unit_values(type, packed.data() + i / 128 * unit_bytes(type), output, group, c, got);
          for (int e = 0; e < 8; ++e) {
            const int64_t input = i / 32 * 32 + input_of(c, e);
            const bool valid = output < outputs && input < cols;
            const float want = valid ? expected[static_cast<size_t>(input)] : 0.0f;
            ASSERT_EQ(std::memcmp(&got[e], &want, 4) == 0 || (want == 0.0f && got[e] == 0.0f), true)
                << "output " << output << " input " << input << " of " << cols << ": " << got[e]
                << ", expected " << want;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantisedPack, testing::ValuesIn(kTypes),
                         [](const auto& p) { return std::string(core::info(p.param).name); });

TEST(QuantisedBytes, AreTheFilesButForHalvesOfKBlocks) {
  EXPECT_EQ(quantised_bytes(core::DType::kQ4_0, 4096, 4096),
            4096 * core::row_bytes(core::DType::kQ4_0, 4096));
  EXPECT_EQ(quantised_bytes(core::DType::kQ8_0, 16, 4096),
            16 * core::row_bytes(core::DType::kQ8_0, 4096));
  EXPECT_EQ(quantised_bytes(core::DType::kQ4_K, 16, 256), 16 * 256 * 19 / 32);
  EXPECT_EQ(quantised_bytes(core::DType::kQ6_K, 17, 256), 32 * 256 * 53 / 64);
  for (const core::DType type : {core::DType::kBF16, core::DType::kQ5_K, core::DType::kF16}) {
    EXPECT_FALSE(can_stay_quantised(type));
  }
}

}  // namespace
}  // namespace ops::cuda
