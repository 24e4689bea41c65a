#include "exec/cuda/step_outputs.h"

#include <algorithm>

#include "base/check.h"

namespace exec::cuda {
namespace {

constexpr int64_t kHeader = 16;  // the error, and at 8 the time of gathers
// Six counts and one sum a row.
constexpr int64_t kRowBytes = 6 * 4 + 8;

int64_t counters_bytes(int64_t selects_max) {
  return (kHeader + selects_max * kRowBytes + 15) / 16 * 16;
}

}  // namespace

int64_t StepOutputs::bytes(const KvOptions& options) {
  const int64_t rows = std::max(options.rows_max, options.max_num_seqs);
  return counters_bytes(options.is_sparse() ? rows : 0) +
         rows * int64_t{sizeof(ops::cuda::SampleResult)};
}

base::Result<StepOutputs> StepOutputs::create(const KvOptions& options) {
  StepOutputs made;
  ASSIGN_OR_RETURN(made.memory_, device::cuda::Buffer::allocate(bytes(options), "step results"));
  ASSIGN_OR_RETURN(made.host_,
                   device::cuda::PinnedBuffer::allocate(bytes(options), "step results"));
  return made;
}

void StepOutputs::begin(int32_t selects_max, int32_t logits_max) {
  selects_max_ = selects_max;
  results_at_ = counters_bytes(selects_max);
  CHECK(results_at_ + logits_max * int64_t{sizeof(ops::cuda::SampleResult)} <= memory_.size(),
        "results of {} rows", logits_max);
}

void StepOutputs::clear(device::cuda::Stream& stream) {
  stream.fill(memory_.data(), 0, results_at_);
}

StepCounters StepOutputs::at(std::byte* base, int32_t begin) const {
  auto* const sums = reinterpret_cast<int64_t*>(base + kHeader);
  auto* const counts = reinterpret_cast<int32_t*>(sums + selects_max_);
  const auto array = [&](int64_t number) { return counts + number * selects_max_ + begin; };
  return {.error = reinterpret_cast<int32_t*>(base),
          .gather_ns = reinterpret_cast<int64_t*>(base + 8),
          .selected = array(0),
          .missed = array(1),
          .evicted = array(2),
          .scratch = array(3),
          .dense_missed = array(4),
          .working_set_frames = array(5),
          .working_set_pages = sums + begin};
}

void StepOutputs::download(device::cuda::Stream& stream, int32_t num_results) {
  stream.copy(host_.data(), memory_.data(),
              results_at_ + num_results * int64_t{sizeof(ops::cuda::SampleResult)});
}

}  // namespace exec::cuda
