// Pages between pinned homes and frames of a GPU (SparseServe 3.2, its Figures 4 and 14).
//
// LOAD, inside a step: what select_and_resolve() missed, by one of
//   memcpy   one cudaMemcpyAsync a page          (needs the lists on the host: a round trip)
//   batched  one batched copy of all of them     (the same)
//   uva      a gather kernel, plain loads over UVA by few blocks; uva-page: one block a page, as in
//            the paper
//   bulk     a gather kernel of bulk copies through shared memory (Hopper), few blocks
//   staged   pages collected by CPU threads into a pinned buffer, one copy, scattered by a kernel
// The kernels keep as much in flight over all their blocks, whatever the number of them (bulk 256
// KB, uva 192): more buys no bandwidth and slows the neighbours (docs/ops/gather.md).
//
// SAVE, beside steps: pages that were sealed, from frames to homes, by
//   memcpy      one cudaMemcpyAsync a page
//   gpu-direct  a kernel that stores to pinned memory
//   staged      one contiguous copy to a pinned ring, CPU threads scatter (streaming stores, fence)
//   extents     one copy for each run that is contiguous on both sides (a block's row is one)
//
// SAVE OF ROWS, beside steps too: what one step wrote of each sequence, K and V of a token in every
// column, packed by a kernel into one run, one copy to a pinned ring, CPU threads put it into the
// tail pages of homes (the paper's FlashD2H). Beside saves of pages, whatever their method.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/kv_options.h"
#include "device/cuda/runtime.h"

namespace store::cuda {

// What a gather leaves on the device while it runs. Zeroed once, for one gather at a time.
struct GatherProgress {
  int32_t begun = 0;        // 1: what was launched before it has ended
  int32_t blocks_done = 0;  // zero between gathers
  uint64_t begin_ns = 0;
};

// Places of one gather: the sums of their lists are kept in shared memory.
inline constexpr int32_t kGatherPlacesMax = 8192;

// Lists by place (ops/cuda/page_ops.h), all on the device: flat home -> flat frame.
struct GatherArgs {
  const std::byte* homes = nullptr;     // pinned, base of flat home 0
  std::byte* frames = nullptr;          // base of flat frame 0
  int64_t page_bytes = 0;               // a multiple of 16
  const int32_t* miss_homes = nullptr;  // (num_places, list_stride)
  const int32_t* miss_frames = nullptr;
  const int32_t* num_misses = nullptr;  // (num_places)
  int32_t num_places = 0;               // at most kGatherPlacesMax
  int64_t list_stride = 0;
  // Null: not timed, and nobody reads beside the gather.
  GatherProgress* progress = nullptr;
  int64_t* gather_ns = nullptr;  // (1) added to, if anything was missed: how long it took
  // The next kernel of the stream reads pages beside the gather (Transfers::gathers_beside()). It
  // may start, by programmatic launch, once all blocks of the gather run. It finds progress->begun
  // at 1 when everything before the gather is done, and clears it; and each page there when its
  // count has reached page_bytes. Pages come about in the order of the lists.
  int32_t* arrived_bytes =
      nullptr;  // (num_places, list_stride) added to, by entry; null: none does
  const int32_t* miss_entries = nullptr;  // (num_places, list_stride) of each miss
  // Of the kernel, an SM each at most. 0: Transfers::gather() chooses this and the next two by what
  // was calibrated; the kernels alone take 6 and 16.
  int num_blocks = 0;
  // Blocks that are placed together (a cluster; divides num_blocks): 2 share one TPC, so that the
  // gather takes whole TPCs from its neighbours. gather_bulk() only.
  int cluster_blocks = 1;
  bool own_sms = false;         // takes so much shared memory that no other block joins its SMs
  int64_t bytes_in_flight = 0;  // 0: the kernel's own
};
// Capturable. The bytes of all places are dealt out evenly over the blocks, to a piece.
void gather_bulk(cudaStream_t stream, const GatherArgs& args);  // REQUIRES: compute capability 9
void gather_uva(cudaStream_t stream, const GatherArgs& args);
// One block a page, as in the paper: for comparison. The grid is num_places x list_stride.
void gather_uva_page(cudaStream_t stream, const GatherArgs& args);

// A run of bytes to be copied; both sides 16-byte aligned.
struct Run {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t bytes = 0;
};

// K and V of one token in every column. Of each frame column (then of each ring column) the page is
// at the page of column 0 plus column * page_bytes.
struct RowSave {
  const std::byte* frames = nullptr;  // page of frame column 0, on the device
  const std::byte* ring = nullptr;    // page of ring column 0; null where no ring has homes
  std::byte* home = nullptr;          // page of home column 0
  int32_t token = 0;                  // of the page
};
// What all such rows have in common.
struct RowShape {
  int64_t row_bytes = 0;  // K of a token in one column; V begins page_bytes / 2 behind K
  int32_t frame_columns = 0, ring_columns = 0;
  std::vector<int32_t> home_columns;  // of each frame column, then of each ring column
  int32_t rows_max = 0;               // of a save; 0: no rows are saved
  int64_t packed_bytes() const { return 2 * row_bytes * (int64_t{frame_columns} + ring_columns); }
};

using SaveTicket = uint64_t;  // 0: nothing was issued

// Tests: called by the committing thread when a ticket's bytes have left the frames. An error fails
// the ticket, a wait in it delays the commit (and, staged, the scatter).
using SaveFault = std::function<base::Result<void>(SaveTicket ticket)>;

struct TransferOptions {
  core::LoadMethod load = core::LoadMethod::kAuto;
  core::SaveMethod save = core::SaveMethod::kAuto;
  int64_t page_bytes = 0;
  int64_t staging_bytes = int64_t{256} << 20;  // pinned ring of staged saves
  RowShape rows;
  int num_workers = 4;     // that scatter
  std::string cache_file;  // what was measured on this machine; empty: none
  SaveFault fault;
  bool drop_saves = false;  // measurements: save() copies nothing, homes hold nothing
};

struct TransferCounters {
  int64_t pages_saved = 0, bytes_saved = 0;  // arrived in their homes; rows count in bytes
  int64_t rows_saved = 0;                    // likewise
  // That copies and the scatter of what was staged took, what ran at once counted once; waits for
  // `ready` are not in it.
  int64_t save_us = 0;
  int64_t save_waits = 0;    // back pressure: save() had to wait
  int64_t saves_failed = 0;  // tickets
  // Spent by create() on measuring; 0: the cache file knew, or nothing was auto.
  int64_t calibration_us = 0;
};

// Saves, and which gather is used. A ticket whose copies fail is never committed: wait() and
// take_failures() tell, the process lives. Saves of one home arrive in the order of their tickets;
// a load or gather must name homes whose ticket is committed. Allocates nothing after create() in
// steady state. Thread: the engine's; workers and the copy stream are its own.
class Transfers {
 public:
  // Measures what is auto, in under a second, unless the cache file knows this machine.
  static base::Result<std::unique_ptr<Transfers>> create(const device::cuda::GpuInfo& gpu,
                                                         const TransferOptions& options);
  virtual ~Transfers() = default;  // waits for all saves

  // Issues the save of these runs (frames -> homes) as one ticket, once `ready` has passed on the
  // compute stream. Tickets rise and are committed in order. The frames may be overwritten only
  // when frames_free(ticket). Waits when the ring is full.
  virtual SaveTicket save(std::span<const Run> runs, const device::cuda::Event& ready) = 0;
  // The same for rows of pages that stay where they are until the ticket is committed. One row of
  // a home at a time may be on its way under different tickets, no page. REQUIRES: options.rows, at
  // most rows_max.
  virtual SaveTicket save_rows(std::span<const RowSave> rows, const device::cuda::Event& ready) = 0;
  // The bytes are in the homes and visible to every thread, and to what is launched from now on.
  virtual bool is_committed(SaveTicket ticket) const = 0;
  virtual bool frames_free(SaveTicket ticket) const = 0;
  // Until it has ended. Errors: kIo (its homes hold nothing).
  virtual base::Result<void> wait(SaveTicket ticket) = 0;
  // Tickets that failed since the last call, appended, rising.
  virtual void take_failures(std::vector<SaveTicket>* failed) = 0;
  virtual base::Result<void> wait_frames(SaveTicket ticket) = 0;
  // Loads of whole runs (homes -> frames) on a stream, by the copy engine; capturable where `runs`
  // stay. Errors: kIo (some may have been issued).
  virtual base::Result<void> load(device::cuda::Stream& stream, std::span<const Run> runs) = 0;
  // The chosen gather; capturable unless it needs the host (memcpy, batched, staged: these wait for
  // the stream and read the lists back). Errors: kIo, only of those.
  virtual base::Result<void> gather(device::cuda::Stream& stream, const GatherArgs& args) = 0;
  // gather() can count pages as they come, on this GPU: GatherArgs::arrived_bytes.
  virtual bool gathers_beside() const = 0;
  virtual int gather_blocks() const = 0;  // SMs that a gather takes at most; 0: the copy engine
  virtual core::LoadMethod load_method() const = 0;
  virtual core::SaveMethod save_method() const = 0;
  virtual TransferCounters counters() const = 0;
};

}  // namespace store::cuda
