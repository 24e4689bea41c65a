// Statistics of K per logical page and channel, from which a page's score is read instead of its
// keys.
//
// Of the P_l keys k_i of a logical page, channel by channel, (centre c, half-width w):
//   cuboid-mean  c = (max + min) / 2, w = mean |k_i - c|     ArkVale (NeurIPS 2024); SparseServe
//   min-max      c = (max + min) / 2, w = max |k_i - c|      Quest (2406.10774) and LServe: a
//   bound,
//                                                            q . c + |q| . w >= max_i q . k_i
//   mean-std     c = mean, w = standard deviation
//   mean         c = mean, w = 0                             InfLLM's kind; loses needles
//
// Both are rounded to BF16, c first: the bound holds for the rounded centre, since min-max rounds
// up what its half-width must be for that one. A channel that holds a NaN has a NaN centre, which
// makes its page score infinity.
//
// Taken from the page as attention reads it: after RoPE, and dequantised where KV is quantised. All
// arithmetic in f32, keys in order, so every version gives the same bits. Thread: device worker.
// Allocates nothing. Bytes: reads P * D * sizeof(KV), writes (P / P_l) * 4 * D a page. Reasoning
// and measurements of all page ops: docs/ops/page_selection.md.
#pragma once

#include <cstdint>
#include <span>

#include "core/kv_options.h"
#include "core/kv_shape.h"
#include "device/stream.h"

namespace ops {

// One sealed page of one KV head.
struct PageStatsItem {
  const std::byte* page = nullptr;  // core::PageShape::page_bytes()
  std::byte* stats = nullptr;  // (P / P_l, 2, D) BF16: centre, then half-width; 64-byte aligned
};

struct PageStatsArgs {
  core::PageShape page;
  core::PageStatsKind kind = core::PageStatsKind::kCuboidMean;
  std::span<const PageStatsItem> items;
};
using PageStatsFn = void (*)(device::Stream& stream, const PageStatsArgs& args);

namespace reference {
void page_stats(device::Stream& stream, const PageStatsArgs& args);
}
namespace avx2 {
void page_stats(device::Stream& stream, const PageStatsArgs& args);
}
namespace avx512 {
void page_stats(device::Stream& stream, const PageStatsArgs& args);
}

}  // namespace ops
