// What a step leaves on the GPU for the host: counters of selection, working sets, drawn tokens and
// log-probabilities, in one buffer that comes down as one copy.
//
// Counters are zeroed when a pass begins. Where an array lies follows from the numbers given to
// begin(), so that a captured graph finds it again. Thread: the engine's. Allocates in create()
// only.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "device/cuda/runtime.h"
#include "exec/kv_plan.h"
#include "ops/cuda/sample.h"

namespace exec::cuda {

// By place among the pass's rows under selection; working sets by place among its last ones.
struct StepCounters {
  int32_t* error = nullptr;      // (1) ops::cuda::SelectError
  int64_t* gather_ns = nullptr;  // (1) that missed pages took to come
  int32_t *selected = nullptr, *missed = nullptr, *evicted = nullptr, *scratch = nullptr;
  int32_t* dense_missed = nullptr;  // by the same rows in dense layers, where nothing is selected
  int32_t* working_set_frames = nullptr;
  int64_t* working_set_pages = nullptr;
};

class StepOutputs {
 public:
  // Errors: kTooLarge.
  static base::Result<StepOutputs> create(const KvOptions& options);
  // Of pinned and of device memory each.
  static int64_t bytes(const KvOptions& options);

  // Lays out a pass: rows under selection, and rows with logits, at most.
  void begin(int32_t selects_max, int32_t logits_max);
  // Enqueues that the counters are zero.
  void clear(device::cuda::Stream& stream);

  // In device memory, from place `begin` of the rows under selection on.
  StepCounters counters(int32_t begin) const { return at(memory_.data(), begin); }
  ops::cuda::SampleResult* results() const {
    return reinterpret_cast<ops::cuda::SampleResult*>(memory_.data() + results_at_);
  }

  // Enqueues the copy down; afterwards (and after the stream) the host's side holds what there was.
  void download(device::cuda::Stream& stream, int32_t num_results);
  StepCounters host_counters() const { return at(host_.data(), 0); }
  const ops::cuda::SampleResult* host_results() const {
    return reinterpret_cast<const ops::cuda::SampleResult*>(host_.data() + results_at_);
  }

 private:
  StepCounters at(std::byte* base, int32_t begin) const;

  device::cuda::Buffer memory_;
  device::cuda::PinnedBuffer host_;
  int64_t selects_max_ = 0;
  int64_t results_at_ = 0;
};

}  // namespace exec::cuda
