// The pages that decode rows attend to, brought into frames: residency and misses of one layer.
//
// Where a sequence is not resident, the pages that a row selected are looked up in the tables of
// its columns (ops/page_resolve.h), the misses are loaded from their homes, and the row gets lists
// of frames. Misses that find no row go to scratch frames, which serve one attention call: rows are
// fetched in groups whose misses are sure to fit. What a row attends to never depends on any of
// this. Thread: the engine's, which works with the pool. Allocates nothing in a steady step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/kv_shape.h"
#include "core/step.h"
#include "device/stream.h"
#include "exec/page_saver.h"
#include "exec/residency.h"
#include "store/page_pool.h"
#include "store/transfer_engine.h"

namespace exec {

// Rows of a sequence that is not resident, at one layer, and the pages that they attend to: one row
// under selection, or rows that attend to all their pages.
struct FetchRow {
  int32_t segment = 0;  // of the plan
  int32_t slot = 0;
  int32_t position = 0;                   // of the last row
  const core::BlockId* blocks = nullptr;  // the sequence's
  const int32_t* pages = nullptr;         // (Hk, pages_stride) rising, the last is the rows' own
  int64_t pages_stride = 0;
  const int32_t* counts = nullptr;  // (Hk) of pages
  int32_t* frames = nullptr;        // (Hk, frames_stride) out: counted from the head's column
  int64_t frames_stride = 0;
  bool selects = false;  // under selection: what it lacks was missed
};

struct PageFetcherParts {
  device::Stream* stream = nullptr;
  const DeviceFrames* frames = nullptr;
  const store::PagePool* homes = nullptr;
  core::KvColumns columns;       // of the frames
  core::KvColumns home_columns;  // of the homes; those of the frames are among them
  int32_t num_layers = 0, num_kv_heads = 0;
  store::TransferEngine* transfers = nullptr;
  Residency* residency = nullptr;
  const PageSaver* saver = nullptr;
};

class PageFetcher {
 public:
  // `copies_max`: misses of one fetch() that fit without allocating.
  PageFetcher(const PageFetcherParts& parts, int32_t copies_max);

  // Counts from zero, and nothing has failed.
  void begin_step(size_t num_segments);

  // How many of `rows`, from the first on, can be fetched together: at least one, no two of one
  // sequence.
  size_t group(int32_t layer, std::span<const FetchRow> rows) const;
  // Fills the lists of rows that group() allows. A row whose pages cannot be had gets its own page
  // in the place of each, and its segment an error: only its result is lost.
  void fetch(int32_t layer, std::span<const FetchRow> rows);

  // Of the step so far.
  int64_t pages_missed(size_t segment) const { return pages_missed_[segment]; }
  const std::string& error(size_t segment) const { return errors_[segment]; }
  // Missed by rows under selection; evicted and in scratch of all rows.
  const core::KvCounters& counters() const { return counters_; }

 private:
  // A head of a layer with frames.
  struct Head {
    int32_t head = 0, column = 0, home_column = 0;
  };
  // (row, head): where its scratch frames begin, what was resolved, where its copies begin.
  struct Item {
    int32_t scratch_begin = 0, scratch_end = 0;
    int64_t copies_begin = 0;
    ops::PageResolveCounts counts;
  };

  std::span<const Head> heads(int32_t layer) const;
  int32_t scratch_wanted(const FetchRow& row, std::span<const Head> layer_heads) const;
  void resolve(const FetchRow& row, const Head& head, Item* item, int32_t* misses) const;
  void list_frames(const FetchRow& row, const Head& head, const Item& item, const int32_t* misses);
  void load(std::span<const FetchRow> rows, std::span<const Head> layer_heads);
  void fail(const FetchRow& row, std::span<const Head> layer_heads, const std::string& why);

  PageFetcherParts parts_;
  std::vector<Head> heads_;          // of all layers
  std::vector<size_t> heads_begin_;  // (L + 1)
  std::vector<Item> items_;
  std::vector<int32_t> misses_;
  std::vector<store::PageCopy> copies_;
  std::vector<int64_t> pages_missed_;  // by segment
  std::vector<std::string> errors_;    // by segment
  core::KvCounters counters_;
};

}  // namespace exec
