// What rows select where a tap says it (exec/selection_tap.h): replayed traces on a GPU.
//
// The kernels score and select as always, then take the tap's pages instead
// (ops::cuda::SelectArgs). The lists of a step are made on the host and copied up as one; while a
// step runs those of the same sequences' next rows are prepared, so that a steady replay costs the
// copy alone. Thread: the engine's. Allocates in create() only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "device/cuda/runtime.h"
#include "exec/cuda/step_inputs.h"
#include "exec/kv_plan.h"
#include "exec/selection_tap.h"

namespace exec::cuda {

class ForcedSelections {
 public:
  // Borrows the tap. Errors: kTooLarge.
  static base::Result<std::unique_ptr<ForcedSelections>> create(const KvOptions& options,
                                                                const SelectionTap& tap);
  // In device memory.
  static int64_t bytes(const KvOptions& options);

  // Rows of a pass at most; those behind select for themselves, as only a long replay of a
  // preempted sequence has them.
  int32_t rows_max() const { return options_.decode_rows_max(); }

  // Enqueues what the pass's rows under selection select. REQUIRES: what was uploaded before has
  // been read.
  void upload(device::cuda::Stream& stream, const Pass& pass);
  // Beside the running step.
  void prepare_next(const Pass& pass);

  // In device memory, of the rows from place `begin` on: ops::cuda::SelectArgs::forced_pages.
  const int32_t* pages(int32_t begin) const { return pages_.as<int32_t>() + begin * row_pages(); }
  const int32_t* counts(int32_t begin) const {
    return counts_.as<int32_t>() + int64_t{begin} * columns_.num_columns();
  }
  int32_t stride() const { return options_.selected_max(); }

 private:
  // The row of a sequence that lists stand for.
  struct Key {
    core::SeqId seq{};
    int32_t position = -1;
    bool fresh = false;
    bool operator==(const Key&) const = default;
  };
  struct Lists {
    device::cuda::PinnedBuffer pages, counts;
    std::vector<Key> keys;  // by place
  };

  ForcedSelections(const KvOptions& options, const SelectionTap& tap)
      : options_(options), tap_(tap), columns_(options.selecting_columns()) {}
  int64_t row_pages() const { return int64_t{columns_.num_columns()} * options_.selected_max(); }
  void make(const Key& key, int32_t num_selected, int32_t place, Lists* lists) const;

  const KvOptions options_;
  const SelectionTap& tap_;
  const core::KvColumns columns_;
  std::array<Lists, 2> lists_;   // of this step, of the next
  device::cuda::Buffer pages_;   // (rows, columns, K)
  device::cuda::Buffer counts_;  // (rows, columns)
};

}  // namespace exec::cuda
