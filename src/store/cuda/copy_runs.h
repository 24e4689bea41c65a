// Runs of bytes as few copy commands of the copy engine, and by a kernel.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "store/cuda/copy_groups.h"
#include "store/cuda/transfers.h"

namespace store::cuda {

// Issues copies on a stream. Allocates only when it meets more runs than ever before.
class RunCopier {
 public:
  RunCopier();
  // As groups, halved where CUDA refuses them; what is one run by one batched command. Errors: kIo
  // (CUDA's words; some may have been issued): the addresses are not memory that CUDA may copy.
  base::Result<void> copy_extents(cudaStream_t stream, std::span<const Run> runs);
  // One command for each `page_bytes`.
  base::Result<void> copy_pages(cudaStream_t stream, std::span<const Run> runs, int64_t page_bytes);
  // Batched commands of the runs as they are. REQUIRES: what is read does not change until the
  // copies are done, also by work that the stream holds.
  base::Result<void> copy_batched(cudaStream_t stream, std::span<const Run> runs);

 private:
  void copy_group(cudaStream_t stream, const CopyGroup& group, std::span<const Run> runs);
  void add(const Run& run);
  base::Result<void> issue_batch(cudaStream_t stream, bool is_stable);

  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> bytes_;
};

// A run and where its bytes stand among those of all runs of a launch.
struct PlacedRun {
  Run run;
  int64_t offset = 0;
};
// Copies `num_runs` runs of `total_bytes` by a kernel of `num_blocks` blocks, bytes dealt evenly.
// To where each run says, or, with `packed`, to packed + offset. `runs`: readable by the GPU, by
// rising offset; bytes multiples of 16. Errors: kInternal (the GPU has failed).
base::Result<void> copy_runs(cudaStream_t stream, const PlacedRun* runs, int32_t num_runs,
                             int64_t total_bytes, std::byte* packed, int num_blocks);

}  // namespace store::cuda
