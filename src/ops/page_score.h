// Scores of a sequence's sealed pages against one decode row's queries (Quest, SparseServe section
// 2.2, LServe section 3.5).
//
//   score(page) = max over the G query heads of the KV head and over the page's logical pages of
//                 q . centre + |q| . half-width
//
// Queries are rounded to BF16, to nearest even, as attention rounds them (without its softmax
// scale, which changes no order); sums are f32. A head whose statistics or query give NaN scores
// +infinity, and so does its page: it is attended rather than lost. Thread: device worker.
// Allocates nothing. Bytes: (P / P_l) * 4 * D a page, the bound of the op.
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "core/kv_shape.h"
#include "device/stream.h"

namespace ops {

inline constexpr int32_t kPageScoreGroupMax = 16;

// One (row, KV head).
struct PageScoreItem {
  const float* q = nullptr;          // (G, D) f32, contiguous
  const std::byte* stats = nullptr;  // of the column's block 0; 64-byte aligned
  // (num_pages): page i's statistics are at stats + blocks[i] * stats_bytes().
  const core::BlockId* blocks = nullptr;
  int32_t num_pages = 0;    // sealed pages
  float* scores = nullptr;  // (num_pages)
};

struct PageScoreArgs {
  core::PageShape page;
  int32_t group = 0;  // G, at most kPageScoreGroupMax
  std::span<const PageScoreItem> items;
};
// REQUIRES: D a multiple of 16, at most 256.
// TOLERANCE against reference, a page's error over its sum of |q| . (|centre| + half-width): 1e-5.
// A score depends on its query and its page alone, never on what is beside them or on threads.
using PageScoreFn = void (*)(device::Stream& stream, const PageScoreArgs& args);

namespace reference {
void page_score(device::Stream& stream, const PageScoreArgs& args);
}
namespace avx2 {
void page_score(device::Stream& stream, const PageScoreArgs& args);
}
namespace avx512 {
void page_score(device::Stream& stream, const PageScoreArgs& args);
}

}  // namespace ops
