// Every version writes the bytes of the reference, whatever the page holds; and what is read back
// lies within half a step of a code of what was sealed. Read back by hand for a few known values.
#include "ops/kv_seal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "device/cpu.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops {
namespace {

struct Version {
  const char* name;
  device::Isa isa;
  KvSealFn kv_seal;
};

std::vector<Version> versions() {
  std::vector<Version> all = {{"avx2", device::Isa::kAvx2, avx2::kv_seal},
                              {"avx512", device::Isa::kAvx512, avx512::kv_seal}};
  std::erase_if(all, [](const Version& version) { return version.isa > device::detect_isa(); });
  return all;
}

std::vector<core::PageShape> shapes() {
  std::vector<core::PageShape> all;
  for (auto type : {core::DType::kI8, core::DType::kF8E4M3}) {
    all.push_back({type, 32, 32, 128});
    all.push_back({type, 16, 16, 80});
    all.push_back({type, 64, 16, 256});
    all.push_back({type, 16, 16, 16});
  }
  return all;
}

// BF16 K and V: (2, P, D).
std::vector<uint16_t> random_page(const core::PageShape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> page(static_cast<size_t>(2 * shape.page_tokens * shape.head_dim));
  for (size_t i = 0; i < page.size(); ++i) {
    // Channels of very different sizes, as K's are.
    const auto channel = static_cast<int>(i) % shape.head_dim;
    page[i] = reference::float_to_bfloat16(std::ldexp(normal(random), channel % 13 - 6));
  }
  return page;
}

std::vector<std::byte> seal(KvSealFn kv_seal, const core::PageShape& shape,
                            const std::vector<std::vector<uint16_t>>& open) {
  base::ThreadPool pool(2);
  device::Stream stream(pool);
  const int64_t bytes = shape.page_bytes();
  std::vector<std::byte> pages(open.size() * static_cast<size_t>(bytes), std::byte{0x5a});
  std::vector<KvSealItem> items;
  for (size_t i = 0; i < open.size(); ++i) {
    items.push_back({reinterpret_cast<const std::byte*>(open[i].data()),
                     pages.data() + static_cast<int64_t>(i) * bytes});
  }
  kv_seal(stream, {shape, items});
  return pages;
}

TEST(KvSeal, HasTheBytesOfTheReference) {
  for (const core::PageShape& shape : shapes()) {
    std::vector<std::vector<uint16_t>> open;
    for (uint32_t i = 0; i < 9; ++i) open.push_back(random_page(shape, i));
    // Any bits at all: subnormals, infinities and NaN among them; and pages without.
    std::mt19937 random(9);
    for (uint16_t& x : open[1]) x = static_cast<uint16_t>(random());
    for (uint16_t& x : open[2]) x = static_cast<uint16_t>(random() & 0x807f);
    for (uint16_t& x : open[3]) x = static_cast<uint16_t>(random() & 0x8000);
    for (uint16_t& x : open[4]) x = static_cast<uint16_t>(0x3f80 | (random() & 0x807f));
    open[5][static_cast<size_t>(shape.head_dim + 3)] = 0x7fc0;
    open[6].back() = 0xff80;
    const auto expected = seal(reference::kv_seal, shape, open);
    for (const Version& version : versions()) {
      EXPECT_EQ(seal(version.kv_seal, shape, open), expected)
          << version.name << " " << core::info(shape.type).name << " D " << shape.head_dim;
    }
  }
}

TEST(KvSeal, ReadsBackWithinHalfAStep) {
  for (const core::PageShape& shape : shapes()) {
    const auto open = random_page(shape, 3);
    const auto page = seal(reference::kv_seal, shape, {open});
    const auto at = [&](bool v, int32_t t, int32_t c) {
      const int64_t i = (int64_t{v ? shape.page_tokens : 0} + t) * shape.head_dim + c;
      return reference::bfloat16_to_float(open[static_cast<size_t>(i)]);
    };
    std::vector<float> row(static_cast<size_t>(shape.head_dim));
    for (bool v : {false, true}) {
      // The largest of each channel of K, of all of V.
      std::vector<float> max(row.size(), 0.0f);
      for (int32_t i = 0; i < shape.page_tokens * shape.head_dim; ++i) {
        float& largest = max[v ? 0 : static_cast<size_t>(i % shape.head_dim)];
        largest = std::max(largest, std::fabs(at(v, 0, i)));
      }
      for (int32_t t = 0; t < shape.page_tokens; ++t) {
        reference::read_kv_row(shape, page.data(), v, t, row.data());
        for (int32_t c = 0; c < shape.head_dim; ++c) {
          const float x = at(v, t, c), largest = max[v ? 0 : static_cast<size_t>(c)];
          // Half a step of the code, and half of BF16's last place.
          const float step = shape.type == core::DType::kI8
                                 ? largest / 127.0f
                                 : std::max(std::fabs(x) / 8.0f, largest / 448.0f / 512.0f);
          ASSERT_NEAR(row[static_cast<size_t>(c)], x, 0.5f * step + std::fabs(x) / 256.0f);
        }
      }
    }
  }
}

TEST(KvSeal, KnownValues) {
  const core::PageShape i8{core::DType::kI8, 16, 16, 16}, f8{core::DType::kF8E4M3, 16, 16, 16};
  std::vector<uint16_t> open(2 * 16 * 16, 0);
  const auto set = [&](int32_t row, int32_t channel, float x) {
    open[static_cast<size_t>(row * 16 + channel)] = reference::float_to_bfloat16(x);
  };
  set(0, 0, 127.0f), set(1, 0, 2.5f), set(2, 0, 3.5f), set(3, 0, -0.25f), set(4, 0, -127.0f);
  set(0, 1, 448.0f), set(1, 1, 17.0f), set(2, 1, 19.0f), set(3, 1, -0.0029296875f);
  set(5, 2, INFINITY);
  const auto a = seal(reference::kv_seal, i8, {open}), b = seal(reference::kv_seal, f8, {open});
  const auto code = [](const std::vector<std::byte>& page, int32_t row, int32_t channel) {
    return static_cast<int>(page[static_cast<size_t>(row * 16 + channel)]);
  };
  EXPECT_EQ(code(a, 0, 0), 127);
  EXPECT_EQ(code(a, 1, 0), 2);
  EXPECT_EQ(code(a, 2, 0), 4);
  EXPECT_EQ(code(a, 3, 0), 0);
  EXPECT_EQ(code(a, 4, 0), 256 - 127);
  EXPECT_EQ(code(b, 0, 1), 0x7e);         // 448
  EXPECT_EQ(code(b, 1, 1), 11 << 3 | 0);  // 17 lies between 16 and 18: the even code
  EXPECT_EQ(code(b, 2, 1), 11 << 3 | 2);  // 19 between 18 and 20
  EXPECT_EQ(code(b, 3, 1), 0x80 | 2);     // 1.5 * 2^-9: between 1 and 2 steps
  std::vector<float> row(16);
  reference::read_kv_row(i8, a.data(), false, 1, row.data());
  EXPECT_EQ(row[0], 2.0f);
  EXPECT_TRUE(std::isnan(row[2]));  // an infinity in its channel shows
  EXPECT_EQ(row[3], 0.0f);          // scale 0
  reference::read_kv_row(f8, b.data(), false, 3, row.data());
  EXPECT_EQ(row[1], -0.00390625f);
}

}  // namespace
}  // namespace ops
