// Page statistics: every version writes the definition's bits, for all kinds, types and shapes and
// for extreme keys; the definition means what it says; and min-max bounds every key of its page
// after rounding.
#include "ops/page_stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device/cpu.h"
#include "ops/kv_seal.h"
#include "ops/op_table.h"
#include "ops/page_score.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops {
namespace {

using core::PageStatsKind;

constexpr PageStatsKind kKinds[] = {PageStatsKind::kCuboidMean, PageStatsKind::kMinMax,
                                    PageStatsKind::kMeanStd, PageStatsKind::kMean};

constexpr core::DType kTypes[] = {core::DType::kBF16, core::DType::kF16, core::DType::kF32,
                                  core::DType::kI8, core::DType::kF8E4M3};

std::vector<device::Isa> versions() {
  std::vector<device::Isa> all = {device::Isa::kAvx2, device::Isa::kAvx512};
  std::erase_if(all, [](device::Isa isa) { return isa > device::detect_isa(); });
  return all;
}

// What keys are drawn from.
enum class Keys { kNormal, kLarge, kOverflowing, kDenormal, kEqual, kOffset, kMixed, kSpecial };
constexpr Keys kAllKeys[] = {Keys::kNormal, Keys::kLarge,  Keys::kOverflowing, Keys::kDenormal,
                             Keys::kEqual,  Keys::kOffset, Keys::kMixed,       Keys::kSpecial};

float draw(Keys keys, std::mt19937& random, int32_t channel) {
  std::normal_distribution<float> normal;
  const float x = normal(random);
  const auto at = static_cast<float>(channel);
  switch (keys) {
    case Keys::kNormal:
      return x;
    case Keys::kLarge:
      return x * 3e4f;
    case Keys::kOverflowing:
      return std::clamp(x, -1.0f, 1.0f) * std::numeric_limits<float>::max();
    case Keys::kDenormal:
      return x * 1e-39f;
    case Keys::kEqual:
      return std::sin(at);
    case Keys::kOffset:
      return 100.0f * std::sin(at) + x * 0.01f;
    case Keys::kMixed:
      return std::ldexp(x, static_cast<int>(random() % 200) - 100);
    case Keys::kSpecial:
      if (random() % 50 == 0) return std::numeric_limits<float>::quiet_NaN();
      return random() % 50 ? x : x * std::numeric_limits<float>::infinity();
  }
  return x;
}

// Pages of one head, keys drawn and values left 0, with the keys as they can be read back.
struct Pages {
  core::PageShape shape;
  std::vector<std::byte> bytes;
  std::vector<float> keys;  // (pages, P, D)

  Pages(core::PageShape page_shape, Keys kind, int32_t num_pages, uint32_t seed)
      : shape(page_shape), bytes(static_cast<size_t>(num_pages * page_shape.page_bytes())) {
    std::mt19937 random(seed);
    const int32_t count = shape.page_tokens * shape.head_dim;
    for (int32_t page = 0; page < num_pages; ++page) {
      std::byte* out = bytes.data() + page * shape.page_bytes();
      if (shape.is_quantised()) {
        write_codes(out, kind, random);
        continue;
      }
      for (int32_t i = 0; i < count; ++i) write(out, i, draw(kind, random, i % shape.head_dim));
    }
  }

  const float* page_keys(int32_t page) const {
    return keys.data() + int64_t{page} * shape.page_tokens * shape.head_dim;
  }

 private:
  // Codes with scales of any size, keys as they are read back.
  void write_codes(std::byte* page, Keys kind, std::mt19937& random) {
    const int32_t count = shape.page_tokens * shape.head_dim;
    for (int32_t i = 0; i < count; ++i) {
      const auto code = static_cast<uint8_t>(random());
      page[i] = std::byte{(code & 0x7f) == 0x7f ? uint8_t{0} : code};  // not the NaN of fp8
    }
    for (int32_t c = 0; c < shape.head_dim; ++c) {
      const float scale = std::fabs(draw(kind, random, c)) / 448.0f;
      std::memcpy(page + 2 * count + c * 4, &scale, 4);
    }
    keys.resize(keys.size() + static_cast<size_t>(count));
    for (int32_t token = 0; token < shape.page_tokens; ++token) {
      reference::read_kv_row(shape, page, false, token,
                             keys.data() + std::ssize(keys) - count + token * shape.head_dim);
    }
  }

  void write(std::byte* page, int32_t i, float x) {
    if (shape.type == core::DType::kF32) {
      std::memcpy(page + int64_t{i} * 4, &x, 4);
      keys.push_back(x);
      return;
    }
    // Any 16 bits of a half are a key: the upper bits of the float reach all of its exponents.
    const uint16_t bits = shape.type == core::DType::kBF16
                              ? reference::float_to_bfloat16(x)
                              : static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 15);
    std::memcpy(page + int64_t{i} * 2, &bits, 2);
    keys.push_back(shape.type == core::DType::kBF16 ? reference::bfloat16_to_float(bits)
                                                    : reference::half_to_float(bits));
  }
};

struct Stats {
  const core::PageShape& shape;
  std::vector<uint16_t> bits;  // (pages, P / P_l, 2, D)

  float at(int32_t page, int32_t logical, bool width, int32_t channel) const {
    const int64_t pair = int64_t{page} * shape.logical_pages() + logical;
    return reference::bfloat16_to_float(
        bits[static_cast<size_t>((pair * 2 + width) * shape.head_dim + channel)]);
  }
};

class PageStats : public testing::Test {
 protected:
  Stats compute(PageStatsFn fn, PageStatsKind kind, const Pages& pages) {
    const auto stats_bytes = static_cast<size_t>(pages.shape.stats_bytes());
    const size_t num_pages = pages.bytes.size() / static_cast<size_t>(pages.shape.page_bytes());
    Stats stats{pages.shape, std::vector<uint16_t>(num_pages * stats_bytes / 2, 0x1234)};
    std::vector<PageStatsItem> items;
    for (size_t i = 0; i < num_pages; ++i) {
      items.push_back({pages.bytes.data() + i * static_cast<size_t>(pages.shape.page_bytes()),
                       reinterpret_cast<std::byte*>(stats.bits.data()) + i * stats_bytes});
    }
    fn(stream_, {pages.shape, kind, items});
    return stats;
  }

  base::ThreadPool pool_{2};
  device::Stream stream_{pool_};
};

std::vector<core::PageShape> shapes(core::DType type) {
  return {{type, 16, 16, 16}, {type, 32, 32, 64}, {type, 64, 16, 128},
          {type, 32, 8, 48},  {type, 16, 1, 80},  {type, 64, 64, 256}};
}

TEST_F(PageStats, EveryVersionWritesTheDefinitionsBits) {
  for (core::DType type : kTypes) {
    for (const core::PageShape& shape : shapes(type)) {
      for (Keys keys : kAllKeys) {
        const Pages pages(shape, keys, 5, 7);
        for (PageStatsKind kind : kKinds) {
          const Stats expected = compute(reference::page_stats, kind, pages);
          for (device::Isa isa : versions()) {
            ASSERT_EQ(compute(op_table(isa).page_stats, kind, pages).bits, expected.bits)
                << device::isa_name(isa) << " " << core::info(type).name << " D " << shape.head_dim
                << " P_l " << shape.logical_page_tokens << " keys " << static_cast<int>(keys) << " "
                << core::name(kind);
          }
        }
      }
    }
  }
}

// In double, and rounding left to the tolerance.
TEST_F(PageStats, TheDefinitionIsCentreAndHalfWidth) {
  const core::PageShape shape{core::DType::kF32, 32, 16, 64};
  const Pages pages(shape, Keys::kOffset, 3, 1);
  for (int32_t page = 0; page < 3; ++page) {
    for (int32_t logical = 0; logical < 2; ++logical) {
      for (int32_t channel = 0; channel < 64; ++channel) {
        double max = -1e30, min = 1e30, mean = 0, square = 0, spread = 0;
        std::vector<double> keys;
        for (int32_t i = 0; i < 16; ++i) {
          keys.push_back(
              static_cast<double>(pages.page_keys(page)[(logical * 16 + i) * 64 + channel]));
          max = std::max(max, keys.back()), min = std::min(min, keys.back());
          mean += keys.back() / 16;
        }
        const double centre = static_cast<double>(reference::bfloat16_to_float(
            reference::float_to_bfloat16(static_cast<float>((max + min) / 2))));
        for (double key : keys) {
          square += (key - mean) * (key - mean) / 16;
          spread += std::fabs(key - centre) / 16;
        }
        const double widest = std::max(max - centre, centre - min);
        const double centres[] = {(max + min) / 2, (max + min) / 2, mean, mean};
        const double widths[] = {spread, widest, std::sqrt(square), 0};
        for (int k = 0; k < 4; ++k) {
          const Stats stats = compute(reference::page_stats, kKinds[k], pages);
          ASSERT_NEAR(stats.at(page, logical, false, channel), centres[k],
                      std::fabs(centres[k]) * 0.004);
          ASSERT_NEAR(stats.at(page, logical, true, channel), widths[k], widths[k] * 0.008);
        }
      }
    }
  }
}

// No key of a page lies outside centre +- half-width, as they are stored, and no half-width is more
// than a step of BF16 beyond what the farthest key needs.
TEST_F(PageStats, MinMaxBoundsEveryKeyAndIsTight) {
  for (core::DType type : kTypes) {
    for (const core::PageShape& shape : shapes(type)) {
      for (Keys keys : kAllKeys) {
        if (keys == Keys::kSpecial) continue;
        const Pages pages(shape, keys, 8, 3);
        const Stats stats = compute(reference::page_stats, PageStatsKind::kMinMax, pages);
        for (int32_t page = 0; page < 8; ++page) {
          for (int32_t channel = 0; channel < shape.head_dim; ++channel) {
            for (int32_t logical = 0; logical < shape.logical_pages(); ++logical) {
              const double centre = static_cast<double>(stats.at(page, logical, false, channel));
              const double width = static_cast<double>(stats.at(page, logical, true, channel));
              double need = 0.0;
              for (int32_t i = 0; i < shape.logical_page_tokens; ++i) {
                const int32_t token = logical * shape.logical_page_tokens + i;
                need = std::max(need, std::fabs(static_cast<double>(pages.page_keys(
                                                    page)[token * shape.head_dim + channel]) -
                                                centre));
              }
              if (std::isnan(centre) || std::isnan(width)) continue;  // scores infinity
              ASSERT_GE(width, need) << "keys " << static_cast<int>(keys);
              if (keys == Keys::kNormal || keys == Keys::kOffset) {
                ASSERT_LE(width, need * (1 + 1.0 / 127));
              }
            }
          }
        }
      }
    }
  }
}

// The property that selection builds on: a page's score is at least the largest q . k in it.
TEST_F(PageStats, AMinMaxScoreIsNeverBelowThePagesBestKey) {
  std::mt19937 random(11);
  for (core::DType type : kTypes) {
    for (const core::PageShape& shape : shapes(type)) {
      for (Keys keys : kAllKeys) {
        const Pages pages(shape, keys, 4, 5);
        const Stats stats = compute(reference::page_stats, PageStatsKind::kMinMax, pages);
        std::vector<float> q(static_cast<size_t>(shape.head_dim));
        const Keys queries = keys == Keys::kLarge ? Keys::kMixed : Keys::kNormal;
        for (float& x : q) x = draw(queries, random, 0);
        const core::BlockId blocks[] = {core::BlockId{0}, core::BlockId{1}, core::BlockId{2},
                                        core::BlockId{3}};
        float scores[4];
        const PageScoreItem item{q.data(), reinterpret_cast<const std::byte*>(stats.bits.data()),
                                 blocks, 4, scores};
        reference::page_score(stream_, {shape, 1, {&item, 1}});
        for (int32_t page = 0; page < 4; ++page) {
          for (int32_t token = 0; token < shape.page_tokens; ++token) {
            double product = 0.0;
            for (int32_t c = 0; c < shape.head_dim; ++c) {
              product += static_cast<double>(reference::bfloat16_to_float(
                             reference::float_to_bfloat16(q[static_cast<size_t>(c)]))) *
                         static_cast<double>(pages.page_keys(page)[token * shape.head_dim + c]);
            }
            if (std::isnan(product)) {
              ASSERT_EQ(scores[page], std::numeric_limits<float>::infinity());
              continue;
            }
            // The score is rounded to f32 and summed in double, both in another order.
            ASSERT_GE(static_cast<double>(scores[page]) + std::fabs(product) * 1e-6, product)
                << core::info(type).name << " keys " << static_cast<int>(keys);
          }
        }
      }
    }
  }
}

TEST_F(PageStats, AKeyThatIsNoNumberIsSeen) {
  const core::PageShape shape{core::DType::kF32, 16, 16, 16};
  Pages pages(shape, Keys::kNormal, 1, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(pages.bytes.data() + (7 * 16 + 3) * 4, &nan, 4);
  for (PageStatsKind kind : kKinds) {
    const Stats stats = compute(reference::page_stats, kind, pages);
    EXPECT_TRUE(std::isnan(stats.at(0, 0, false, 3))) << core::name(kind);
    EXPECT_FALSE(std::isnan(stats.at(0, 0, false, 4)));
  }
}

}  // namespace
}  // namespace ops
