// Carries out a step on one back end: transfers first, then the rows through the model, then
// sampling.
//
// Two implementations, chosen at run time: exec/cpu_executor.h and the simulator of tests/sim.
// Thread: the engine's.
#pragma once

#include "base/result.h"
#include "core/step.h"

namespace exec {

class Executor {
 public:
  virtual ~Executor() = default;

  // Runs the step and fills `result` (whose vectors it reuses), one entry per segment in order. A
  // failure fails the step's sequences, never the process: kInternal or kIo.
  virtual base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                                 core::StepResult* result) = 0;
};

}  // namespace exec
