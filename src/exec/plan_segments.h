// What every executor knows of a step's plan: which segments run together, what a plan must keep
// to, and what a result holds before anything has run.
//
// Pure. Thread: any.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "core/step.h"
#include "exec/kv_plan.h"

namespace exec {

// Segments that one forward pass takes through all layers together; those with activations, which
// follow them, run one by one.
std::span<const core::Segment> whole_passes(const core::StepPlan& plan);

// Stops the process where the plan breaks a rule of core/step.h. `segmented`: segments with
// activations can be run. Errors: kInternal (a budget that the KV was not made for).
base::Result<void> check_plan(const core::StepPlan& plan, const KvOptions& kv, bool segmented);

// One result a segment: nothing selected, no error, room for the prompt's log-probabilities, and
// whether a token will be drawn.
void begin_results(const core::StepPlan& plan, int32_t num_layers, core::StepResult* result);

// Where the tokens of a layer-segmented prefill end: a layer is done when they all are through it.
int32_t prefill_end(const core::Segment& segment, int32_t page_tokens);

}  // namespace exec
