#include "store/cuda/staged_loads.h"

#include <algorithm>

#include "device/cuda/status.h"
#include "store/page_copy.h"

namespace store::cuda {
namespace {

constexpr int kScatterBlocks = 16;

}  // namespace

base::Result<std::unique_ptr<StagedLoads>> StagedLoads::create(int num_workers) {
  using device::cuda::Buffer;
  using device::cuda::PinnedBuffer;
  std::unique_ptr<StagedLoads> loads(new StagedLoads(std::max(1, num_workers)));
  constexpr auto kListBytes = static_cast<int64_t>(kLoadHalfRuns * sizeof(PlacedRun));
  for (Half& half : loads->halves_) {
    ASSIGN_OR_RETURN(half.staging, PinnedBuffer::allocate(kLoadHalfBytes, "staged loads"));
    ASSIGN_OR_RETURN(half.list, PinnedBuffer::allocate(kListBytes, "staged loads"));
    ASSIGN_OR_RETURN(half.packed, Buffer::allocate(kLoadHalfBytes, "staged loads"));
    ASSIGN_OR_RETURN(half.device_list, Buffer::allocate(kListBytes, "staged loads"));
    ASSIGN_OR_RETURN(half.crossed, device::cuda::Event::create());
  }
  return loads;
}

base::Result<void> StagedLoads::load(device::cuda::Stream& stream, std::span<const Run> runs) {
  while (!runs.empty()) {
    int64_t count = 0, bytes = 0;
    while (count < std::min<int64_t>(kLoadHalfRuns, std::ssize(runs)) &&
           bytes + runs[static_cast<size_t>(count)].bytes <= kLoadHalfBytes) {
      bytes += runs[static_cast<size_t>(count++)].bytes;
    }
    CHECK(count > 0, "a run of {} bytes", runs[0].bytes);
    RETURN_IF_ERROR(load_part(stream, runs.first(static_cast<size_t>(count))));
    runs = runs.subspan(static_cast<size_t>(count));
  }
  return {};
}

base::Result<void> StagedLoads::load_part(device::cuda::Stream& stream, std::span<const Run> runs) {
  Half& half = halves_[next_];
  next_ ^= 1;
  RETURN_IF_ERROR(half.crossed.synchronize());
  auto* placed = half.list.as<PlacedRun>();
  int64_t bytes = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    placed[i] = {{runs[i].to, half.packed.data() + bytes, runs[i].bytes}, bytes};
    bytes += runs[i].bytes;
  }
  workers_.parallel_for(std::ssize(runs), [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    copy_bytes(half.staging.data() + placed[at].offset, runs[at].from, runs[at].bytes,
               Stores::kStreaming);
    finish_stores(Stores::kStreaming);
  });
  stream.copy(half.packed.data(), half.staging.data(), bytes);
  stream.copy(half.device_list.data(), placed,
              static_cast<int64_t>(runs.size() * sizeof(PlacedRun)));
  stream.record(half.crossed);
  return copy_runs(stream.handle(), half.device_list.as<PlacedRun>(),
                   static_cast<int32_t>(runs.size()), bytes, nullptr, kScatterBlocks);
}

}  // namespace store::cuda
