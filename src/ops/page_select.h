// The K pages that a (row, KV head) attends to.
//
// Always among them: pages [0, sink_pages) and the tail (page num_pages, the row's own, which has
// no statistics when it is not sealed). The rest are the best by score, ties to the lower page. The
// result is in page order. Who uses a selection again later adds the pages sealed since and the new
// tail behind it, which keeps that order.
//
// Deterministic: a function of the arguments alone; NaN counts as +infinity, -0 as 0. Thread: any,
// called inside a parallel loop. Allocates nothing.
#pragma once

#include <cstdint>
#include <span>

namespace ops {

struct PageSelectArgs {
  std::span<const float> scores;   // (num_pages): sealed pages before the row's own
  int32_t sink_pages = 1;          // at most num_selected - 1
  int32_t num_selected = 0;        // K >= 2, the tail included
  int32_t* pages = nullptr;        // (min(K, num_pages + 1)) out, rising; the last is num_pages
  std::span<std::byte> workspace;  // 64-byte aligned, >= page_select_workspace_bytes(num_pages)
};
int64_t page_select_workspace_bytes(int32_t pages_max);
// Returns how many pages were written. O(num_pages).
int32_t page_select(const PageSelectArgs& args);

// Definition: sorts. Uses no workspace. For tests.
namespace reference {
int32_t page_select(const PageSelectArgs& args);
}

}  // namespace ops
