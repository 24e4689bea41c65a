// Statistics and quantisation of sealed pages, scores, selection and residency on the GPU: what
// ops/page_stats.h, kv_seal.h, page_score.h, page_select.h and page_resolve.h define, over all rows
// and heads of a layer in one launch, with the same results: pages, frames, stamps and eviction
// exactly those of the references; statistics and codes bit for bit; scores within 1e-5 (so that a
// selection is compared at equal scores, NaN counted as infinity).
//
// Fixed shapes, no host round trip, capturable in a graph: how many rows there are and what they
// are is read on the device.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/kv_options.h"
#include "device/cuda/runtime.h"
#include "ops/cuda/kv.h"

namespace ops::cuda {

// Statistics by (selecting column, block): (P / P_l, 2, D) BF16 each, column by column, so that
// consecutive blocks of a head are one run.
struct StatsPool {
  std::byte* base = nullptr;
  int64_t stats_bytes = 0;  // core::PageShape::stats_bytes()
  int64_t num_blocks = 0;
};

// Pages that the step's rows fill. (num) entries, the number on the device.
//
// `kv` and selecting_columns are of one layer, or of all at once (num_kv_heads = L Hk, arrays of
// all, open_column 0) where no table has a head_stride. Only later rows of the same sequence read a
// page's codes and statistics: a step that has one row of each sequence may seal all layers in one
// launch at its end, which spares it two small launches a layer.
struct SealArgs {
  KvLayer kv;
  core::PageStatsKind kind = core::PageStatsKind::kCuboidMean;
  StatsPool stats;                             // base null: no statistics
  const int32_t* selecting_columns = nullptr;  // (Hk) of stats; -1: none
  struct Page {
    int32_t table = 0;  // whose sequence
    int32_t page = 0;   // of the sequence
    int32_t block = 0;  // statistics go to
  };
  const PageTable* tables = nullptr;
  const Page* pages = nullptr;
  const int32_t* num_pages = nullptr;  // on the device
  int32_t pages_max = 0;               // grid
};
// Quantised KV: the open page of every head becomes the page in its frame (or ring). First.
void kv_seal(cudaStream_t stream, const SealArgs& args);
// Statistics of every retrieval head's page, from the frame.
void page_stats(cudaStream_t stream, const SealArgs& args);

// A decode row under selection. On the device, written by the host once a step, used in all layers.
// Rows of one slot stand one behind the other and are taken in their order. REQUIRES: of a slot
// that is not resident, one row a launch: the frames that a row lists are the next one's to evict.
struct SelectRow {
  int32_t row = 0;  // of the step
  int32_t slot = 0;
  int32_t position = 0;
  int32_t num_selected = 0;  // K >= 2, the tail included
  uint32_t stamp = 0;        // of selected_at: position + 1 (rises row by row)
  int32_t fresh = 0;         // there is no earlier selection to use again
  int32_t resident = 0;      // its pages are where its table says: nothing to resolve
  int32_t saved_pages = 0;   // pages [0, n) have committed homes
  int32_t num_frames = 0;    // own rows of frames that pages may take, counted from frames_begin
  int32_t frames_begin = 0;  // of `own_rows`: where they begin (0 as the executor sets it)
};

// Per-slot state, by (slot, selecting column): owned by exec/cuda, zeroed when a sequence enters.
//
// frame_of says where a page stands, as ops::ResidencyTable does: kNotResident; or
// ops::shared_frame(row): in that row of the pool (flat frame row * C + column), in every column,
// never evicted; or i >= 0: in row own_rows[frames_begin + i]. The host writes shared_frame() for
// pages in shared rows, and for the pages of the sequence that have no committed home yet, a row's
// own page (the tail) among them; pages in own_rows are always evictable.
struct SelectState {
  int32_t pages_max = 0;              // stride of the arrays by page
  int32_t frames_max = 0;             // stride of page_of and own_rows
  int32_t kept_max = 0;               // K at most
  int32_t num_columns = 0;            // selecting columns
  int32_t* frame_of = nullptr;        // (slots, columns, pages_max) as ops::ResidencyTable
  uint32_t* selected_at = nullptr;    // (slots, columns, pages_max)
  int32_t* page_of = nullptr;         // (slots, columns, frames_max) by i: the page there, or -1
  int32_t* kept = nullptr;            // (slots, columns, kept_max) the selection that is used again
  int32_t* num_kept = nullptr;        // (slots, columns)
  const int32_t* own_rows = nullptr;  // (slots, frames_max) rows of frames of the sequence
  const int32_t* blocks = nullptr;    // (slots, pages_max) block (home) of each page
};

struct ScoreArgs {
  core::PageShape page;
  const __nv_bfloat16* q = nullptr;  // (T, Hq, D) after RoPE, row stride q_stride; 16-byte aligned
  int64_t q_stride = 0;              // a multiple of 8
  int32_t num_q_heads = 0, num_kv_heads = 0;
  StatsPool stats;
  const int32_t* selecting_columns = nullptr;  // (Hk) of this layer; -1: the head selects nothing
  SelectState state;
  const SelectRow* rows = nullptr;
  const int32_t* num_rows = nullptr;  // on the device
  int32_t rows_max = 0;               // of the launch
  // (position + layer) % reuse_interval == 0, or fresh: scored, else skipped; rows whose pages are
  // at most K are skipped as well.
  int32_t layer = 0, reuse_interval = 1;
  float* scores = nullptr;  // (rows_max, Hk, pages_max), by the row's place in `rows`
  int num_sms = 0;
};
// Rows, their number, blocks, tables of resident rows and lists of columns are read while the
// launch before may still run (launch.cuh): REQUIRES that an earlier one wrote them. Bound: 4 D
// bytes for each logical page, once. Warps share the logical pages of all rows and heads evenly,
// whatever the rows' lengths. REQUIRES: D a multiple of 16 up to 256; G <= 16; P / P_l a power of
// two.
void page_score(cudaStream_t stream, const ScoreArgs& args);

// SelectArgs::arrivals of a page that nothing has to come of.
inline constexpr int32_t kPageIsHere = INT32_MAX;

struct SelectArgs {
  ScoreArgs score;  // as it was scored
  int32_t sink_pages = 1;
  KvPool pool;                            // frames
  const int32_t* columns = nullptr;       // (Hk) frame columns of this layer
  const int32_t* home_columns = nullptr;  // (Hk)
  const PageTable* tables = nullptr;      // of resident rows: frame of each page
  const int32_t* row_tables = nullptr;    // (T)
  int32_t num_home_columns = 0;
  int64_t scratch_begin = 0;  // flat frames
  int32_t scratch_frames = 0;
  // Selections given from outside (replayed traces), by (place in `rows`, selecting column): what
  // is selected then is replaced by forced_counts pages, rising, the last of them the row's own.
  // Count 0, or null: nothing is replaced. Rows that use a selection again take no notice.
  const int32_t* forced_pages = nullptr;   // (rows_max, columns, forced_stride)
  const int32_t* forced_counts = nullptr;  // (rows_max, columns)
  int32_t forced_stride = 0;
  // out, by place = SelectRow::row * Hk + head. Places of other rows are left as they are:
  // num_listed -1 and num_misses 0, set by the caller once. Heads that select nothing get those
  // too.
  int32_t list_stride = 0;        // pages of a list at most: K, and those sealed since
  int32_t* pages = nullptr;       // (places, list_stride) selected, rising; may be null
  int32_t* frames = nullptr;      // (places, list_stride) flat frames of them
  int32_t* num_listed = nullptr;  // (places)
  // Misses, by place: flat home (home * num_home_columns + home column) -> flat frame. Null: no row
  // of this executor is ever not resident.
  int32_t* miss_homes = nullptr;   // (places, list_stride)
  int32_t* miss_frames = nullptr;  // (places, list_stride)
  int32_t* num_misses = nullptr;   // (places)
  // For decode_attention() beside the gather: which entry of the list each miss is, and by entry 0
  // for what is to be fetched, kPageIsHere for the rest. Null: rows attend when all has come.
  int32_t* miss_entries = nullptr;  // (places, list_stride)
  int32_t* arrivals = nullptr;      // (places, list_stride)
  // (2) on the device: frames of scratch taken, blocks done. Zeroed once; every launch leaves it
  // zero, so that the next one (the next layer) has all scratch again. Which place gets which
  // scratch frame may differ from run to run.
  int32_t* scratch_taken = nullptr;
  // Counters of the step, added to, by place in `rows`: (rows_max) each; may be null.
  int32_t* selected_pages = nullptr;
  int32_t* missed_pages = nullptr;
  int32_t* evicted_pages = nullptr;
  int32_t* scratch_pages = nullptr;
  // (1) a SelectError, the greatest of the step; whatever it is, all frames listed are frames of
  // the pool, but what the step computed is worth nothing.
  int32_t* error = nullptr;
};
enum SelectError : int32_t {
  kSelectOk = 0,
  kOutOfScratch = 1,   // scratch ran out: tables as if it had not
  kPageIsNowhere = 2,  // a page had neither frame nor committed home
  kListTooLong = 3,    // a list was cut at list_stride
  kNothingKept = 4,    // a row that is not fresh found no selection: its own page was listed
};
// Select (or use again), then, for rows that are not resident, resolve. One launch, one block for
// each (slot, head).
void select_and_resolve(cudaStream_t stream, const SelectArgs& args);

// page_score() and select_and_resolve() in one launch: the same pages, frames, misses, tables and
// counters. `scores` is neither read nor written. Faster for few rows and heads. `cluster_blocks`
// (1 to 8; 16 where the GPU has such clusters) share a (slot, head).
// REQUIRES: can_select_in_one_launch().
void select_in_one_launch(cudaStream_t stream, const SelectArgs& args, int cluster_blocks);
// The GPU has clusters, and a block's shared memory holds the scores of pages_max pages.
bool can_select_in_one_launch(const SelectArgs& args);
// By one launch or two, whichever is faster for so many rows_max and pages_max; `scores` may be
// written or not.
void score_and_select(cudaStream_t stream, const SelectArgs& args);

// Pages [0, position / P] of each row stamped within its last `window` stamps: the most of any
// column and the sum over columns, (rows_max) each, by place in `rows`. After the step's layers.
struct WorkingSetArgs {
  SelectState state;
  int32_t page_tokens = 0;  // P
  const SelectRow* rows = nullptr;
  const int32_t* num_rows = nullptr;
  int32_t rows_max = 0, window = 12;
  int32_t* frames = nullptr;
  int64_t* pages = nullptr;
};
void working_set(cudaStream_t stream, const WorkingSetArgs& args);

// ops::page_shrink of every column of a slot, and the pages' bytes moved with it: own_rows
// [frames_begin + keep, frames_begin + num_frames) hold nothing afterwards. What evictions there
// were is added to `evicted`.
struct ShrinkArgs {
  SelectState state;
  KvPool pool;
  const int32_t* columns_of = nullptr;  // (selecting columns) frame column of each
  int32_t slot = 0;
  int32_t frames_begin = 0;  // of own_rows
  int32_t num_frames = 0;    // that the table has now
  int32_t keep = 0;
  int32_t saved_pages = 0;     // REQUIRES: at most `keep` of the pages in own rows at or above it
  int32_t* evicted = nullptr;  // (1) on the device; may be null
};
void page_shrink(cudaStream_t stream, const ShrinkArgs& args);

}  // namespace ops::cuda
