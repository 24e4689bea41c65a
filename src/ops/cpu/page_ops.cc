// The part of page statistics and scores that no instruction set changes: items over threads.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "ops/cpu/page_kernels.h"
#include "ops/page_score.h"
#include "ops/page_stats.h"

namespace ops {
namespace {

using cpu::PageKernels;

// Pages of a task: 128 KB of statistics at D = 128 and one logical page, 5 us or more, so that
// handing out tasks costs little and one row's heads still spread over the threads.
constexpr int32_t kTaskPages = 256;

const cpu::PageStatsKernels& kernels_of(const PageKernels& kernels, core::DType type) {
  switch (type) {
    case core::DType::kBF16:
      return kernels.bf16;
    case core::DType::kF16:
      return kernels.f16;
    case core::DType::kI8:
      return kernels.i8;
    case core::DType::kF8E4M3:
      return kernels.f8;
    default:
      CHECK(type == core::DType::kF32, "{} is no KV type", core::info(type).name);
      return kernels.f32;
  }
}

cpu::PageStatsKernel kernel_of(const cpu::PageStatsKernels& kernels, core::PageStatsKind kind) {
  switch (kind) {
    case core::PageStatsKind::kCuboidMean:
      return kernels.cuboid_mean;
    case core::PageStatsKind::kMinMax:
      return kernels.min_max;
    case core::PageStatsKind::kMeanStd:
      return kernels.mean_std;
    case core::PageStatsKind::kMean:
      return kernels.mean;
  }
  CHECK(false, "page statistics {}", static_cast<int>(kind));
  return nullptr;
}

void run_stats(const PageKernels& kernels, device::Stream& stream, const PageStatsArgs& args) {
  const core::PageShape& shape = args.page;
  CHECK(shape.head_dim % 16 == 0 && shape.page_tokens <= cpu::kPageTokensMax &&
            shape.page_tokens % shape.logical_page_tokens == 0 &&
            std::has_single_bit(static_cast<uint32_t>(shape.logical_page_tokens)),
        "head dim {}, pages of {} / {} tokens", shape.head_dim, shape.page_tokens,
        shape.logical_page_tokens);
  const cpu::PageStatsKernel kernel = kernel_of(kernels_of(kernels, shape.type), args.kind);
  const int64_t key_bytes = shape.logical_page_tokens * core::row_bytes(shape.type, shape.head_dim);
  // Scales stand behind K and V: K's are the first.
  const int64_t scales_at = 2 * shape.page_tokens * core::row_bytes(shape.type, shape.head_dim);
  stream.pool().parallel_for(std::ssize(args.items), [&](int64_t i, int) {
    const PageStatsItem& item = args.items[static_cast<size_t>(i)];
    for (int32_t logical = 0; logical < shape.logical_pages(); ++logical) {
      kernel({.keys = item.page + logical * key_bytes,
              .scales = reinterpret_cast<const float*>(item.page + scales_at),
              .tokens = shape.logical_page_tokens,
              .head_dim = shape.head_dim,
              .stats =
                  reinterpret_cast<uint16_t*>(item.stats) + int64_t{logical} * 2 * shape.head_dim});
    }
  });
}

// To nearest even; NaN stays NaN.
uint16_t bfloat16_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

void run_score(const PageKernels& kernels, device::Stream& stream, const PageScoreArgs& args) {
  const core::PageShape& shape = args.page;
  const auto logical_pages = static_cast<uint32_t>(shape.logical_pages());
  CHECK(args.group >= 1 && args.group <= kPageScoreGroupMax, "{} query heads", args.group);
  CHECK(shape.head_dim % 16 == 0 && shape.head_dim <= 256 && std::has_single_bit(logical_pages),
        "head dim {}, {} logical pages", shape.head_dim, logical_pages);
  int32_t pages_max = 0;
  for (const PageScoreItem& item : args.items) pages_max = std::max(pages_max, item.num_pages);
  const int64_t tasks = (pages_max + kTaskPages - 1) / kTaskPages;  // of the longest item
  stream.pool().parallel_for(tasks * std::ssize(args.items), [&](int64_t i, int) {
    const PageScoreItem& item = args.items[static_cast<size_t>(i / tasks)];
    const auto begin = static_cast<int32_t>(i % tasks) * kTaskPages;
    if (begin >= item.num_pages) return;
    alignas(64) uint16_t q[kPageScoreGroupMax * 256];
    for (int32_t c = 0; c < args.group * shape.head_dim; ++c) q[c] = bfloat16_of(item.q[c]);
    kernels.score({.q = q,
                   .group = args.group,
                   .head_dim = shape.head_dim,
                   .logical_shift = std::countr_zero(logical_pages),
                   .stats = item.stats,
                   .blocks = item.blocks + begin,
                   .num_pages = std::min(kTaskPages, item.num_pages - begin),
                   .scores = item.scores + begin});
  });
}

}  // namespace

namespace avx2 {
void page_stats(device::Stream& stream, const PageStatsArgs& args) {
  run_stats(cpu::kPageAvx2, stream, args);
}
void page_score(device::Stream& stream, const PageScoreArgs& args) {
  run_score(cpu::kPageAvx2, stream, args);
}
}  // namespace avx2

namespace avx512 {
void page_stats(device::Stream& stream, const PageStatsArgs& args) {
  run_stats(cpu::kPageAvx512, stream, args);
}
void page_score(device::Stream& stream, const PageScoreArgs& args) {
  run_score(cpu::kPageAvx512, stream, args);
}
}  // namespace avx512

}  // namespace ops
