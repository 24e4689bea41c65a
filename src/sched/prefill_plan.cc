#include "sched/prefill_plan.h"

#include <algorithm>

#include "base/check.h"

namespace sched {

RowRange PrefillProgress::next(int32_t page_tokens, int64_t work_max) const {
  CHECK(!done() && token < token_end, "the prompt is done");
  const int32_t rest = token_end - token;
  RowRange range{
      .layer_begin = layer, .layer_end = layer + 1, .token_begin = token, .token_end = token};
  if (rest <= work_max) {
    range.token_end = token_end;
    if (token == token_begin) {
      const int64_t layers = std::min<int64_t>(work_max / rest, num_layers - layer);
      range.layer_end = layer + static_cast<int32_t>(layers);
    }
  } else {
    // Cuts are at multiples of P: what is cached before the prompt is whole pages.
    range.token_end = token + static_cast<int32_t>(work_max / page_tokens) * page_tokens;
  }
  return range;
}

void PrefillProgress::advance(const RowRange& range) {
  CHECK(range.layer_begin == layer && range.token_begin == token && !range.empty(),
        "rows [{}, {}) of layer {} do not follow", range.token_begin, range.token_end,
        range.layer_begin);
  token = range.token_end;
  if (token < token_end) return;
  layer = range.layer_end;
  token = token_begin;
}

}  // namespace sched
