// What a sequence's KV consists of: which (layer, KV head)s have pages in every block, which keep
// only their first and last tokens, and what a page and its statistics weigh.
//
// A COLUMN is one (layer, KV head) whose pages belong to blocks: block b has one page in each
// column. Pools lay pages out column by column (store/), so page b of a column is found at
// column * num_blocks + b. A streaming head has either a column like any other (the walk of the
// attention op then skips what it does not see) or a RING: a fixed number of frames per sequence,
// the sink's and the last `local` tokens', whatever the context.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace core {

// How one KV head attends. local == 0: a retrieval head, which sees (or selects among) all tokens.
// Otherwise a streaming head: a row at position p sees positions [0, sink) and (p - local, p].
// A sliding-window layer is sink 0, local = window.
struct HeadKind {
  int32_t sink = 0, local = 0;  // tokens
  bool is_streaming() const { return local > 0; }
  bool operator==(const HeadKind&) const = default;
};

// The kinds of all KV heads, layer by layer. Empty: all are retrieval heads.
struct HeadKinds {
  int32_t num_layers = 0, num_kv_heads = 0;
  std::vector<HeadKind> kinds;  // (L, Hk)

  HeadKind at(int32_t layer, int32_t head) const {
    return kinds.empty() ? HeadKind{} : kinds[static_cast<size_t>(layer * num_kv_heads + head)];
  }
  bool any_streaming() const;
};

// (layer, head) <-> column, in the order of layers and heads.
class KvColumns {
 public:
  KvColumns() = default;
  // Columns of the retrieval heads, or of all heads; streaming heads then have ring columns.
  static KvColumns retrieval(int32_t num_layers, int32_t num_kv_heads, const HeadKinds& kinds);
  static KvColumns streaming(int32_t num_layers, int32_t num_kv_heads, const HeadKinds& kinds);
  static KvColumns all(int32_t num_layers, int32_t num_kv_heads);

  int32_t num_columns() const { return num_columns_; }
  // -1: that head has none.
  int32_t column(int32_t layer, int32_t head) const {
    return columns_[static_cast<size_t>(layer * num_kv_heads_ + head)];
  }
  // Columns of a layer are [layer_begin(l), layer_begin(l + 1)).
  int32_t layer_begin(int32_t layer) const { return layer_begin_[static_cast<size_t>(layer)]; }
  int32_t layer_columns_max() const;  // of any layer

 private:
  static KvColumns make(int32_t num_layers, int32_t num_kv_heads, auto&& has_column);
  int32_t num_kv_heads_ = 0, num_columns_ = 0;
  std::vector<int32_t> columns_;      // (L, Hk)
  std::vector<int32_t> layer_begin_;  // (L + 1)
};

// Bytes of one page: K then V of P tokens; the quantised types add their scales (ops/kv_layout.h).
struct PageShape {
  DType type = DType::kBF16;        // kBF16, kF16, kF32, kI8 or kF8E4M3
  int32_t page_tokens = 0;          // P
  int32_t logical_page_tokens = 0;  // P_l, divides P
  int32_t head_dim = 0;             // D

  bool is_quantised() const { return type == DType::kI8 || type == DType::kF8E4M3; }
  int32_t logical_pages() const { return page_tokens / logical_page_tokens; }
  int64_t page_bytes() const;
  // (centre, half-width) of each logical page, BF16: (P / P_l, 2, D).
  int64_t stats_bytes() const { return int64_t{logical_pages()} * 2 * head_dim * 2; }
};

// Frames of a streaming head's ring: those of the sink, and enough for `local` tokens behind a
// call of `rows_max` prompt rows that begins and ends anywhere in a page.
struct RingShape {
  int32_t sink_pages = 0;
  int32_t ring_pages = 0;
  int32_t frames() const { return sink_pages + ring_pages; }
  // The frame that holds page `page` of the sequence while the ring holds it.
  int32_t frame_of(int32_t page) const {
    return page < sink_pages ? page : sink_pages + (page - sink_pages) % ring_pages;
  }
  bool operator==(const RingShape&) const = default;
};
// Of the widest head among `kinds`.
RingShape ring_shape(const HeadKinds& kinds, int32_t page_tokens, int32_t rows_max);

}  // namespace core
