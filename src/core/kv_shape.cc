#include "core/kv_shape.h"

#include <algorithm>

#include "base/check.h"

namespace core {

bool HeadKinds::any_streaming() const {
  return std::ranges::any_of(kinds, [](const HeadKind& kind) { return kind.is_streaming(); });
}

KvColumns KvColumns::make(int32_t num_layers, int32_t num_kv_heads, auto&& has_column) {
  KvColumns made;
  made.num_kv_heads_ = num_kv_heads;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    made.layer_begin_.push_back(made.num_columns_);
    for (int32_t head = 0; head < num_kv_heads; ++head) {
      made.columns_.push_back(has_column(layer, head) ? made.num_columns_++ : -1);
    }
  }
  made.layer_begin_.push_back(made.num_columns_);
  return made;
}

KvColumns KvColumns::retrieval(int32_t num_layers, int32_t num_kv_heads, const HeadKinds& kinds) {
  return make(num_layers, num_kv_heads,
              [&](int32_t layer, int32_t head) { return !kinds.at(layer, head).is_streaming(); });
}

KvColumns KvColumns::streaming(int32_t num_layers, int32_t num_kv_heads, const HeadKinds& kinds) {
  return make(num_layers, num_kv_heads,
              [&](int32_t layer, int32_t head) { return kinds.at(layer, head).is_streaming(); });
}

KvColumns KvColumns::all(int32_t num_layers, int32_t num_kv_heads) {
  return make(num_layers, num_kv_heads, [](int32_t, int32_t) { return true; });
}

int32_t KvColumns::layer_columns_max() const {
  int32_t most = 0;
  for (size_t i = 1; i < layer_begin_.size(); ++i) {
    most = std::max(most, layer_begin_[i] - layer_begin_[i - 1]);
  }
  return most;
}

int64_t PageShape::page_bytes() const {
  CHECK(page_tokens > 0 && head_dim > 0, "page of {} tokens, head dim {}", page_tokens, head_dim);
  const int64_t rows = 2 * int64_t{page_tokens} * row_bytes(type, head_dim);
  if (!is_quantised()) return rows;
  // Scales: one of K a channel, one of V, in f32, padded to a cache line.
  return rows + (int64_t{head_dim} + 1) * 4 + (64 - (head_dim + 1) * 4 % 64) % 64;
}

RingShape ring_shape(const HeadKinds& kinds, int32_t page_tokens, int32_t rows_max) {
  int32_t sink = 0, local = 0;
  for (const HeadKind& kind : kinds.kinds) {
    if (!kind.is_streaming()) continue;
    sink = std::max(sink, kind.sink);
    local = std::max(local, kind.local);
  }
  const auto pages = [&](int32_t tokens) { return (tokens + page_tokens - 1) / page_tokens; };
  return {.sink_pages = pages(sink), .ring_pages = pages(local + rows_max) + 1};
}

}  // namespace core
