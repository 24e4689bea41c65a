#include "exec/kv_plan.h"

#include <algorithm>

#include "exec/selection_state.h"
#include "ops/page_select.h"

namespace exec {
namespace {

constexpr int64_t kScoresBytesMax = 8 << 20;

int64_t align(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

core::KvColumns KvOptions::block_columns() const {
  return rings ? core::KvColumns::retrieval(num_layers, num_kv_heads, heads)
               : core::KvColumns::all(num_layers, num_kv_heads);
}

core::KvColumns KvOptions::ring_columns() const {
  return core::KvColumns::streaming(num_layers, num_kv_heads, rings ? heads : core::HeadKinds{});
}

core::KvColumns KvOptions::selecting_columns() const {
  if (!is_sparse()) return core::KvColumns::streaming(num_layers, num_kv_heads, {});
  // Dense layers select nothing, like streaming heads.
  core::HeadKinds kinds{.num_layers = num_layers, .num_kv_heads = num_kv_heads, .kinds = {}};
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (int32_t head = 0; head < num_kv_heads; ++head) {
      kinds.kinds.push_back(layer < sparse.dense_layers ? core::HeadKind{.local = 1}
                                                        : heads.at(layer, head));
    }
  }
  return core::KvColumns::retrieval(num_layers, num_kv_heads, kinds);
}

core::KvColumns KvOptions::dense_columns() const {
  core::HeadKinds kinds{.num_layers = num_layers, .num_kv_heads = num_kv_heads, .kinds = {}};
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (int32_t head = 0; head < num_kv_heads; ++head) {
      const bool is_dense = is_sparse() && layer < sparse.dense_layers;
      kinds.kinds.push_back(is_dense ? heads.at(layer, head) : core::HeadKind{.local = 1});
    }
  }
  return core::KvColumns::retrieval(num_layers, num_kv_heads, kinds);
}

core::RingShape KvOptions::ring() const {
  return rings ? core::ring_shape(heads, page.page_tokens, rows_max) : core::RingShape{};
}

core::PageShape KvOptions::open_page() const {
  core::PageShape open = page;
  open.type = core::DType::kBF16;
  return open;
}

int32_t KvOptions::open_layers() const {
  if (!page.is_quantised()) return 0;
  // Beside the first page of each segment, rows begin at most so many.
  const int32_t begun = rows_max / page.page_tokens + max_num_seqs;
  return num_layers + (begun + max_num_seqs - 1) / max_num_seqs;
}

int32_t KvOptions::open_rows() const {
  if (!page.is_quantised()) return 0;
  return max_num_seqs + rows_max / page.page_tokens + max_num_seqs;
}

int32_t KvOptions::decode_rows_max() const {
  constexpr int32_t kReplayRows = 16;
  return std::min(rows_max, std::max(max_num_seqs, kReplayRows));
}

int32_t KvOptions::dense_rows_max() const {
  constexpr int32_t kRows = 8;  // of 128k tokens: 4 MiB of lists
  return std::min(kRows, decode_rows_max());
}

int32_t KvOptions::logits_rows_max() const {
  constexpr int32_t kMost = 256, kLeast = 32;  // of 128k tokens: 128 and 16 MiB
  return std::min(kMost, std::max(max_num_seqs, std::min(rows_max, kLeast)));
}

int32_t KvOptions::padded_rows(int32_t rows) const {
  const int32_t most = std::min(max_num_seqs, logits_rows_max());
  if (rows > most) return 0;
  int32_t padded = 1;
  while (padded < rows) padded += std::min(padded, padded < 64 ? 8 : 32);
  return std::min(padded, most);
}

int32_t selecting_rows_max(const KvOptions& options) {
  if (!options.is_sparse()) return 0;
  const int64_t row_bytes = int64_t{options.num_kv_heads} * options.pages_max() * 4;
  return static_cast<int32_t>(
      std::clamp<int64_t>(kScoresBytesMax / row_bytes, 1, options.rows_max));
}

namespace {

// What differs on a GPU: exec/cuda allocates by these figures.
void count_gpu(const KvOptions& options, KvBytes* bytes) {
  const int64_t selecting = options.selecting_columns().num_columns();
  const int64_t pages_max = options.pages_max();
  // Stamps and a kept selection a column, and the table of rows.
  bytes->slot_state =
      selecting * (pages_max + options.selected_max() + 1) * 4 + align(pages_max * 4);
  // Where pages are and which page is there a column, and stamps of dense ones; homes and cached
  // rows.
  const int64_t dense = options.dense_columns().num_columns();
  bytes->slot_tier = (2 * selecting + 3 * dense + 2) * pages_max * 4;
  bytes->tier_tables = options.num_kv_heads * (pages_max + options.num_layers) * 4;
  if (dense > 0) {
    bytes->dense_lists =
        int64_t{options.dense_rows_max()} * options.num_kv_heads * (3 * pages_max + 2) * 4;
  }
  if (options.page.is_quantised()) {
    bytes->open_pages = (options.open_rows() - options.max_num_seqs) * bytes->slot_open;
  }
  bytes->scratch = 0;
  if (selecting == 0) return;
  // Scores, and lists of frames, of misses and of what has come.
  const int64_t head_bytes = pages_max * 4 + options.listed_max() * 5 * 4 + 2 * 4;
  bytes->scratch = options.decode_rows_max() * options.num_kv_heads * head_bytes;
}

}  // namespace

KvBytes kv_bytes(const KvOptions& options) {
  KvBytes bytes;
  const int64_t page_bytes = options.page.page_bytes();
  const int64_t pages_max = options.pages_max();
  const int64_t selecting = options.selecting_columns().num_columns();
  bytes.block_pages = options.block_columns().num_columns() * page_bytes;
  bytes.block_stats = selecting * options.page.stats_bytes();
  bytes.slot_ring = options.ring_columns().num_columns() * page_bytes * options.ring().frames();
  bytes.slot_state = selecting * SelectionState::column_bytes(options) +
                     (options.rings ? 2 : 1) * align(pages_max * 4);
  if (options.page.is_quantised()) {
    const int64_t layer_bytes = options.num_kv_heads * options.open_page().page_bytes();
    bytes.slot_open = options.num_layers * layer_bytes;
    bytes.open_pages =
        (options.open_layers() - options.num_layers) * layer_bytes * options.max_num_seqs;
  }
  if (selecting > 0) {
    const int64_t rows = selecting_rows_max(options);
    const int64_t head_bytes = pages_max * 4 + options.listed_max() * 2 * 4 + 4;
    bytes.scratch = rows * options.num_kv_heads * head_bytes +
                    options.num_threads *
                        align(ops::page_select_workspace_bytes(static_cast<int32_t>(pages_max)));
  }
  if (options.gpu) count_gpu(options, &bytes);
  return bytes;
}

}  // namespace exec
