// What the KV of a back end is made of, and the device bytes that follow from it.
//
// Pure: engine/resolve divides the device's memory by these figures before anything is allocated,
// and the executor allocates exactly what they say.
#pragma once

#include <cstdint>

#include "core/kv_options.h"
#include "core/kv_shape.h"

namespace exec {

// The shape of the KV, whatever the number of blocks.
struct KvOptions {
  int32_t num_layers = 0, num_kv_heads = 0;  // L, Hk
  core::PageShape page;
  core::HeadKinds heads;
  // Streaming heads keep their pages in rings of their own, none in blocks.
  bool rings = false;
  core::SparseOptions sparse;
  int32_t working_set_window = 12;  // w, decode rows of a sequence
  int32_t rows_max = 0;             // rows of a step
  int32_t max_num_seqs = 0;         // slots
  int32_t context_max = 0;          // tokens of one sequence
  int32_t num_threads = 1;
  bool gpu = false;  // laid out for exec/cuda

  bool is_sparse() const { return sparse.budget_tokens > 0; }
  int32_t pages_max() const { return (context_max + page.page_tokens - 1) / page.page_tokens; }
  // K: pages of a selection at most; 0 without a budget.
  int32_t selected_max() const { return sparse.budget_tokens / page.page_tokens; }
  // Pages that a decode row under selection attends to at most: K, and those sealed while its
  // selection is used again.
  int32_t listed_max() const {
    return selected_max() + (sparse.reuse_interval - 1) / page.page_tokens + 1;
  }

  core::KvColumns block_columns() const;      // whose pages live in blocks
  core::KvColumns ring_columns() const;       // none without rings
  core::KvColumns selecting_columns() const;  // whose pages have statistics and are selected
  // Of dense layers in front of selecting ones: retrieval heads that attend to all pages.
  core::KvColumns dense_columns() const;
  core::RingShape ring() const;  // no frames without rings
  // Quantised KV: BF16 pages being filled, one a slot and head in each layer, and in as many layers
  // of pretence behind the last those that rows of one layer of one step begin and fill.
  core::PageShape open_page() const;
  int32_t open_layers() const;  // 0: KV is not quantised
  // On a GPU: rows of open pages, one in every layer and head; slot i goes on with row i.
  int32_t open_rows() const;
  // On a GPU: decode rows that attend together, all of a step but for long replays.
  int32_t decode_rows_max() const;
  // On a GPU with a host tier: rows of those that list all their pages together in a dense layer.
  int32_t dense_rows_max() const;
  // On a GPU: rows whose logits are made together.
  int32_t logits_rows_max() const;
  // On a GPU: rows that a step of `rows` decode rows, one a sequence, is padded to, so that few
  // graphs serve all steps: powers of two to 8, then steps of 8 to 64 and of 32. 0: no padding.
  int32_t padded_rows(int32_t rows) const;
};

// Device bytes beside the weights and the model's workspace.
struct KvBytes {
  int64_t block_pages = 0;  // of a block: its pages
  int64_t block_stats = 0;  // of a block: statistics of its pages
  int64_t slot_ring = 0;    // of a slot: frames of streaming heads
  int64_t slot_state = 0;   // of a slot: tables, selections, stamps
  int64_t slot_tier = 0;    // of a slot on a GPU with a host tier: tables of residency
  int64_t slot_open = 0;    // of a slot: BF16 pages that its next rows go on with, quantised KV
  int64_t open_pages = 0;   // BF16 pages that the rows of one layer begin, quantised KV
  int64_t tier_tables = 0;  // on a GPU with a host tier: columns of homes, pages of a layer buffer
  int64_t dense_lists = 0;  // on a GPU with a host tier: lists of all pages of a dense layer's rows
  int64_t scratch = 0;      // scores and lists of the rows of one layer

  int64_t block() const { return block_pages + block_stats; }
  int64_t slots(int32_t max_num_seqs) const {
    return (slot_ring + slot_state + slot_open) * max_num_seqs;
  }
  int64_t total(int32_t num_blocks, int32_t max_num_seqs) const {
    return block() * num_blocks + slots(max_num_seqs) + open_pages + scratch;
  }
};
KvBytes kv_bytes(const KvOptions& options);

// Decode rows whose pages are scored and selected together: as many as their scores take 8 MiB.
int32_t selecting_rows_max(const KvOptions& options);

}  // namespace exec
