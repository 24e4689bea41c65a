// Which rows of a layer-segmented prompt the next step runs: pure arithmetic (SparseServe section
// 3.4).
//
// A segment is a rectangle: a range of layers over a range of tokens. Whole layers over the whole
// prompt, as many as the bound on tokens x layers allows; a layer that alone is over the bound is
// cut into ranges of whole pages, which run in order before the next layer begins.
#pragma once

#include <cstdint>

namespace sched {

struct RowRange {
  int32_t layer_begin = 0, layer_end = 0;
  int32_t token_begin = 0, token_end = 0;
  bool empty() const { return token_begin == token_end; }
  int32_t rows() const { return token_end - token_begin; }
  int64_t work() const { return int64_t{rows()} * (layer_end - layer_begin); }  // tokens x layers
  bool operator==(const RowRange&) const = default;
};

// How far a layer-segmented prompt is: layers [0, layer) are done for tokens [token_begin,
// token_end), layer `layer` for [token_begin, token).
struct PrefillProgress {
  int32_t num_layers = 0;
  int32_t token_begin = 0, token_end = 0;  // rows to compute; what is before is cached
  int32_t layer = 0;
  int32_t token = 0;

  bool done() const { return layer == num_layers; }
  // At most `work_max` tokens x layers. Empty when not even a page of one layer is within it.
  RowRange next(int32_t page_tokens, int64_t work_max) const;
  // The range from next() has run.
  void advance(const RowRange& range);
};

}  // namespace sched
