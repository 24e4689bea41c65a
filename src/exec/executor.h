// Carries out a step on one back end: transfers first, then the rows through the model, then
// sampling.
//
// Implementations, chosen at run time: exec/cpu_executor.h, exec/cuda/cuda_executor.h and the
// simulators of tests/sim. Thread: the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "base/result.h"
#include "core/live_state.h"
#include "core/step.h"

namespace exec {

class Executor {
 public:
  virtual ~Executor() = default;

  // Blocks [0, count) can be used by plans. Homes of a host tier may be made ready while steps run
  // already: then the count rises, until nothing `is_growing` any more, perhaps short of what was
  // wanted.
  struct ReadyBlocks {
    int32_t count = std::numeric_limits<int32_t>::max();
    bool is_growing = false;
  };
  virtual ReadyBlocks ready_blocks() const { return {}; }

  // A number that is another one whenever a part of a step has been done since, however small: what
  // tells a long step from a hung one. Who has none leaves it at the steps themselves. Thread: any.
  virtual uint64_t progress() const { return 0; }

  // The disk tier: its records (0: there is none), and what a former process left there, least
  // recently used first, to be called once before the first step.
  virtual uint64_t num_disk_records() const { return 0; }
  virtual void take_disk_entries(const std::function<void(const core::DiskEntry&)>& /*entry*/) {}

  // For a process that ends, between steps: waits until all that spills wrote is on the disk and a
  // later process finds it, and `used` counts as the order in which these records were last used.
  // False: something was not written since the last such call.
  virtual bool sync_disk(std::span<const uint64_t> /*used*/) { return true; }

  // Spills are done and fetches have begun, and `fetched` and `unwritten` say what the disk has
  // done since, even when the step fails. A plan without segments waits a few milliseconds for a
  // read, if there is one on its way.
  //
  // Runs the step and fills `result` (whose vectors it reuses), one entry per segment in order. A
  // failure fails the step's sequences, never the process: kInternal or kIo.
  virtual base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                                 core::StepResult* result) = 0;

  // run() in two parts, one step at a time: submit() hands the step over, finish() waits for it and
  // fills `result`. Plan, transfers and result stay until then; what the plan borrows is read by
  // submit() alone, so that blocks and rows may be given to the step behind it. A step whose
  // submit() fails has failed and is not finished. Who computes on the engine's own thread has
  // nothing to split.
  virtual base::Result<void> submit(const core::StepPlan& plan, const core::TransferPlan& transfers,
                                    core::StepResult* result) {
    return run(plan, transfers, result);
  }
  virtual base::Result<void> finish() { return {}; }
  // Adds to the strip of a running sequence what only the device knows: which of its pages are in
  // frames, and which ones its last row selected. Between steps; costs at most 2^15 looks into a
  // table. Who does not know leaves the strip as it is.
  virtual void draw_pages(int32_t /*slot*/, core::SeqId /*seq*/, core::PageStrip* /*strip*/) const {
  }

  // Appends the blocks whose homes are being written, or could not be, which is not reported yet;
  // any of them more than once. Between steps.
  virtual void list_saving(std::vector<core::BlockId>* /*blocks*/) const {}

  // Steps run beside the engine's thread between the two.
  virtual bool is_asynchronous() const { return false; }
};

}  // namespace exec
