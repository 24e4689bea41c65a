// Scores of a sequence's sealed pages against one decode row's queries (Quest, SparseServe section
// 2.2, LServe section 3.5).
//
//   score(page) = max over the G query heads of the KV head and over the page's logical pages of
//                 q . centre + |q| . half-width
//
// Queries are rounded to BF16 as attention rounds them; sums are f32. A page whose statistics or
// query give NaN scores +infinity: it is attended rather than lost. Thread: device worker.
// Allocates nothing. Bytes: (P / P_l) * 4 * D a page, the bound of the op.
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"
#include "ops/kv_layout.h"

namespace ops {

// One (row, KV head).
struct PageScoreItem {
  const float* q = nullptr;          // (G, D) f32, contiguous
  const std::byte* stats = nullptr;  // of the column's block 0
  const core::BlockId* blocks =
      nullptr;            // (num_pages): page i's statistics are at stats + blocks[i] * stats_bytes
  int32_t num_pages = 0;  // sealed pages
  float* scores = nullptr;  // (num_pages)
};

struct PageScoreArgs {
  core::PageShape page;
  int32_t group = 0;  // G, at most 16
  std::span<const PageScoreItem> items;
};
// TOLERANCE against reference: 1e-3 of the largest |score|. The result does not depend on how items
// are spread over threads.
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
