// Carries out a step on one back end: transfers first, then the rows through the model, then
// sampling.
//
// Two implementations, chosen at run time: exec/cpu_executor.h and the simulator of tests/sim.
// Thread: the engine's.
#pragma once

#include <functional>

#include "base/result.h"
#include "core/step.h"

namespace exec {

class Executor {
 public:
  virtual ~Executor() = default;

  // The disk tier: its records (0: there is none), and what a former process left there, least
  // recently used first, to be called once before the first step.
  virtual uint64_t num_disk_records() const { return 0; }
  virtual void take_disk_entries(const std::function<void(const core::DiskEntry&)>& /*entry*/) {}

  // Spills are done and fetches have begun, and `fetched` and `unwritten` say what the disk has
  // done since, even when the step fails. A plan without segments waits a few milliseconds for a
  // read, if there is one on its way.
  //
  // Runs the step and fills `result` (whose vectors it reuses), one entry per segment in order. A
  // failure fails the step's sequences, never the process: kInternal or kIo.
  virtual base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                                 core::StepResult* result) = 0;
};

}  // namespace exec
