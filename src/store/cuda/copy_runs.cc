#include "store/cuda/copy_runs.h"

#include <algorithm>

#include "device/cuda/status.h"

namespace store::cuda {
namespace {

constexpr size_t kBatchMax = 1024;
constexpr size_t kBatchMin = 4;  // below, single commands cost the caller less

base::Result<void> to_io(cudaError_t status, const Run& run) {
  if (status == cudaSuccess) return {};
  cudaGetLastError();  // what the call refused is not sticky
  return base::error(base::Code::kIo, "copying {} bytes between the GPU and pinned memory: {}",
                     run.bytes, cudaGetErrorString(status));
}

base::Result<void> copy_one(cudaStream_t stream, const Run& run) {
  return to_io(
      cudaMemcpyAsync(run.to, run.from, static_cast<size_t>(run.bytes), cudaMemcpyDefault, stream),
      run);
}

base::Result<void> copy_rows(cudaStream_t stream, const CopyGroup& group) {
  return to_io(cudaMemcpy2DAsync(group.first.to, static_cast<size_t>(group.to_pitch),
                                 group.first.from, static_cast<size_t>(group.from_pitch),
                                 static_cast<size_t>(group.first.bytes),
                                 static_cast<size_t>(group.rows), cudaMemcpyDefault, stream),
               group.first);
}

}  // namespace

RunCopier::RunCopier() {
  constexpr size_t kRoom = 4096;
  to_.reserve(kRoom);
  from_.reserve(kRoom);
  bytes_.reserve(kRoom);
}

void RunCopier::add(const Run& run) {
  to_.push_back(run.to);
  from_.push_back(run.from);
  bytes_.push_back(static_cast<size_t>(run.bytes));
}

base::Result<void> RunCopier::issue_batch(cudaStream_t stream, bool is_stable) {
  base::Result<void> result;
  if (to_.size() < kBatchMin) {
    for (size_t i = 0; i < to_.size() && result.ok(); ++i) {
      result = copy_one(stream,
                        {static_cast<std::byte*>(to_[i]), static_cast<const std::byte*>(from_[i]),
                         static_cast<int64_t>(bytes_[i])});
    }
  } else {
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder =
        is_stable ? cudaMemcpySrcAccessOrderAny : cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
    result = to_io(cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), to_.size(),
                                        &attributes, &first, 1, stream),
                   {nullptr, nullptr, static_cast<int64_t>(bytes_[0])});
  }
  to_.clear();
  from_.clear();
  bytes_.clear();
  return result;
}

base::Result<void> RunCopier::copy_extents(cudaStream_t stream, std::span<const Run> runs) {
  while (!runs.empty()) {
    const CopyGroup group = first_group(runs);
    const auto own = runs.first(static_cast<size_t>(group.num_runs));
    copy_group(stream, group, own);
    runs = runs.subspan(own.size());
  }
  return issue_batch(stream, false);
}

// A command may not reach over two registered pieces of memory: halves of one that does are tried,
// so that rows in few pieces stay few commands. What no command takes is left to the batch.
void RunCopier::copy_group(cudaStream_t stream, const CopyGroup& group, std::span<const Run> runs) {
  if (group.rows > 1) {
    if (copy_rows(stream, group).ok()) return;
    const auto [first, second] = halves(group, runs);
    copy_group(stream, first, runs.first(static_cast<size_t>(first.num_runs)));
    copy_group(stream, second, runs.subspan(static_cast<size_t>(first.num_runs)));
  } else if (group.num_runs == 1 || !copy_one(stream, group.first).ok()) {
    for (const Run& run : runs) add(run);
  }
}

base::Result<void> RunCopier::copy_pages(cudaStream_t stream, std::span<const Run> runs,
                                         int64_t page_bytes) {
  for (const Run& run : runs) {
    for (int64_t at = 0; at < run.bytes; at += page_bytes) {
      const int64_t bytes = std::min(page_bytes, run.bytes - at);
      RETURN_IF_ERROR(copy_one(stream, {run.to + at, run.from + at, bytes}));
    }
  }
  return {};
}

base::Result<void> RunCopier::copy_batched(cudaStream_t stream, std::span<const Run> runs) {
  for (size_t at = 0; at < runs.size(); at += kBatchMax) {
    for (const Run& run : runs.subspan(at, std::min(kBatchMax, runs.size() - at))) add(run);
    RETURN_IF_ERROR(issue_batch(stream, true));
  }
  return {};
}

}  // namespace store::cuda
