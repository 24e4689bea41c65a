// What attention on a GPU asks of the tier below it: where the pages of a step's sequences are, and
// that what their decode rows selected comes.
//
// Null without a host tier: every sequence is then resident, and its pages stand in the rows of its
// blocks. Implemented by exec/cuda/cuda_tier.h. Thread: the engine's.
#pragma once

#include "base/result.h"
#include "core/step.h"
#include "device/cuda/runtime.h"
#include "ops/cuda/page_ops.h"
#include "store/cuda/transfers.h"

namespace exec::cuda {

class KvTier {
 public:
  virtual ~KvTier() = default;

  // All pages of the segment's sequence are where its table says.
  virtual bool is_resident(const core::Segment& segment) const = 0;
  // Frames of the segment's pages; the caller fills in the rest of the table.
  virtual void place(const core::Segment& segment, ops::cuda::PageTable* table) = 0;
  // A decode row of a sequence that is not resident: what it may keep where.
  virtual void place(const core::Segment& segment, ops::cuda::SelectRow* row) = 0;
  // own_rows and blocks of the slots' state, and homes of the layer.
  virtual void complete(int32_t layer, ops::cuda::SelectArgs* args) const = 0;
  // Pages of a KV head that a row of the segment, which is not resident, may need scratch frames
  // for, of those that it selects or of all; and how many there are: rows that attend together need
  // no more.
  virtual int32_t scratch_pages(const core::Segment& segment, bool of_all) const = 0;
  virtual int32_t scratch_pages_max() const = 0;
  // Enqueues that the misses of rows [0, num_rows), as the places of `args` count them, come; how
  // long it takes is added to *ns. With args.arrivals (REQUIRES: gathers_beside()) the next launch
  // may attend to pages as they come: it finds progress->begun.
  virtual base::Result<void> gather(device::cuda::Stream& stream, const ops::cuda::SelectArgs& args,
                                    int32_t num_rows, store::cuda::GatherProgress* progress,
                                    int64_t* ns) = 0;
  // Rows may attend while their misses come; and the SMs that are then taken.
  virtual bool gathers_beside() const = 0;
  virtual int gather_sms() const = 0;
  // gather() needs no round trip to the host.
  virtual bool is_capturable() const = 0;
};

}  // namespace exec::cuda
