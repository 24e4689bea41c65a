// Every weight type against values that an independent reader of the format gave for the same
// random blocks (tests/golden/make_dequantize_golden.py), and the two 16-bit float types over all
// their bit patterns by arithmetic.
#include "ops/reference/dequantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/check.h"

namespace ops::reference {
namespace {

struct GoldenCase {
  core::DType type;
  std::vector<std::byte> row;
  std::vector<float> values;
};

// A sequence of: name (8 bytes, zero-padded), u32 bytes, u32 elements, the row, the values as f32.
std::vector<GoldenCase> read_golden() {
  std::ifstream file(SPILLWAY_SOURCE_DIR "/tests/golden/data/dequantize.bin", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<GoldenCase> cases;
  size_t at = 0;
  auto take = [&](void* to, size_t n) {
    CHECK(at + n <= all.size(), "golden file ends at {}", all.size());
    std::memcpy(to, all.data() + at, n);
    at += n;
  };
  while (at < all.size()) {
    char name[9] = {};
    uint32_t sizes[2];
    take(name, 8);
    take(sizes, sizeof(sizes));
    GoldenCase c{core::find_dtype(name).value(), std::vector<std::byte>(sizes[0]),
                 std::vector<float>(sizes[1])};
    take(c.row.data(), c.row.size());
    take(c.values.data(), c.values.size() * sizeof(float));
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST(Dequantize, EqualsAnIndependentReader) {
  const std::vector<GoldenCase> cases = read_golden();
  ASSERT_EQ(cases.size(), static_cast<size_t>(core::kNumDTypes));
  for (const GoldenCase& c : cases) {
    const int64_t elements = static_cast<int64_t>(c.values.size());
    ASSERT_EQ(core::row_bytes(c.type, elements), static_cast<int64_t>(c.row.size()));
    std::vector<float> out(c.values.size() + 1, -7.0f);
    dequantize_row(c.type, c.row.data(), elements, out.data());
    EXPECT_EQ(out.back(), -7.0f) << "wrote past the row";
    float largest = 0;
    for (float v : c.values) largest = std::max(largest, std::fabs(v));
    // A compiler may contract d q + m into one rounding.
    for (size_t i = 0; i < c.values.size(); ++i) {
      ASSERT_NEAR(out[i], c.values[i], largest * 0x1p-23f)
          << core::info(c.type).name << " element " << i;
    }
  }
}

TEST(Dequantize, ReadsAtAnyAlignment) {
  for (const GoldenCase& c : read_golden()) {
    std::vector<std::byte> shifted(c.row.size() + 1);
    std::memcpy(shifted.data() + 1, c.row.data(), c.row.size());
    std::vector<float> out(c.values.size()), moved(c.values.size());
    dequantize_row(c.type, c.row.data(), static_cast<int64_t>(out.size()), out.data());
    dequantize_row(c.type, shifted.data() + 1, static_cast<int64_t>(out.size()), moved.data());
    EXPECT_EQ(out, moved) << core::info(c.type).name;
  }
}

TEST(Dequantize, HalfIsExactForAllBitPatterns) {
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    const float x = half_to_float(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::signbit(x), bits >> 15 == 1) << bits;
    if (exponent == 31) {
      ASSERT_TRUE(mantissa == 0 ? std::isinf(x) : std::isnan(x)) << bits;
    } else {
      const float expected = exponent == 0
                                 ? std::ldexp(static_cast<float>(mantissa), -24)
                                 : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
      ASSERT_EQ(x, sign * expected) << bits;
    }
  }
}

TEST(Dequantize, BFloat16IsTheUpperHalf) {
  EXPECT_EQ(bfloat16_to_float(0x3F80), 1.0f);
  EXPECT_EQ(bfloat16_to_float(0xC0A0), -5.0f);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(0x7FC0)));
}

}  // namespace
}  // namespace ops::reference
