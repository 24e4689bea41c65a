#include "exec/cuda/dense_lists.h"

#include <algorithm>
#include <vector>

namespace exec::cuda {
namespace {

using device::cuda::Buffer;
using device::cuda::Stream;

// Of a listed page in the shared memory of select_and_resolve(), and of everything else there.
constexpr int64_t kPageBytes = 24, kOtherBytes = 16 << 10;

}  // namespace

base::Result<std::unique_ptr<DenseLists>> DenseLists::create(const device::cuda::GpuInfo& gpu,
                                                             Stream& stream,
                                                             const KvOptions& options,
                                                             const CudaKv& kv) {
  const int64_t pages_max = (gpu.shared_bytes_max - kOtherBytes) / kPageBytes;
  if (options.pages_max() > pages_max) {
    return base::error(base::Code::kUnsupported,
                       "--dense-layers {} with a host tier lists {} pages, and the GPU's kernels "
                       "take {}: lower --max-model-len to {}, or use --dense-layers 0",
                       options.sparse.dense_layers, options.pages_max(), pages_max,
                       pages_max * options.page.page_tokens);
  }
  std::unique_ptr<DenseLists> made(new DenseLists(options));
  RETURN_IF_ERROR(made->allocate(stream, kv));
  return made;
}

base::Result<void> DenseLists::allocate(Stream& stream, const CudaKv& kv) {
  const auto allocate = [&](int64_t bytes, const char* what, Buffer* to) -> base::Result<void> {
    ASSIGN_OR_RETURN(*to, Buffer::allocate(bytes, what));
    stream.fill(to->data(), 0, bytes);
    return {};
  };
  const int64_t pages = options_.pages_max(), columns = columns_host_.num_columns();
  const int64_t table_bytes = options_.max_num_seqs * columns * pages * 4;
  for (Buffer* table : {&frame_of_, &page_of_, &selected_at_}) {
    RETURN_IF_ERROR(allocate(table_bytes, "tables of dense layers", table));
  }
  const int64_t places = int64_t{options_.dense_rows_max()} * options_.num_kv_heads;
  for (Buffer* list : {&frames_, &miss_homes_, &miss_frames_}) {
    RETURN_IF_ERROR(allocate(places * pages * 4, "lists of dense layers", list));
  }
  for (Buffer* count : {&num_listed_, &num_misses_}) {
    RETURN_IF_ERROR(allocate(places * 4, "lists of dense layers", count));
  }
  std::vector<int32_t> of_heads, frame_columns;
  for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
    for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
      const int32_t column = columns_host_.column(layer, head);
      of_heads.push_back(column);
      if (column >= 0) frame_columns.push_back(kv.columns().column(layer, head));
    }
  }
  const auto write = [&](const std::vector<int32_t>& values, Buffer* to) -> base::Result<void> {
    const int64_t bytes = std::ssize(values) * 4;
    ASSIGN_OR_RETURN(*to, Buffer::allocate(std::max<int64_t>(bytes, 4), "columns of dense layers"));
    stream.copy(to->data(), values.data(), bytes);
    return {};
  };
  RETURN_IF_ERROR(write(of_heads, &columns_));
  RETURN_IF_ERROR(write(frame_columns, &frame_column_of_));
  state_ = {.pages_max = options_.pages_max(),
            .frames_max = options_.pages_max(),
            .num_columns = columns_host_.num_columns(),
            .frame_of = frame_of_.as<int32_t>(),
            .selected_at = selected_at_.as<uint32_t>(),
            .page_of = page_of_.as<int32_t>()};
  return stream.synchronize();  // the copies read vectors that end here
}

void DenseLists::forget(Stream& stream) {
  stream.fill(num_listed_.data(), 0xff, num_listed_.size());
  stream.fill(num_misses_.data(), 0, num_misses_.size());
}

void DenseLists::fill(int32_t layer, ops::cuda::SelectArgs* select) const {
  select->score.selecting_columns = columns_.as<int32_t>() + int64_t{layer} * options_.num_kv_heads;
  select->score.state = state_;
  select->score.reuse_interval = 1;
  select->list_stride = options_.pages_max();
  select->frames = frames_.as<int32_t>();
  select->num_listed = num_listed_.as<int32_t>();
  select->miss_homes = miss_homes_.as<int32_t>();
  select->miss_frames = miss_frames_.as<int32_t>();
  select->num_misses = num_misses_.as<int32_t>();
  select->selected_pages = nullptr;  // nothing was chosen
}

void DenseLists::fill(ops::cuda::DecodeArgs* decode) const {
  decode->list = frames_.as<int32_t>();
  decode->num_listed = num_listed_.as<int32_t>();
  decode->list_stride = options_.pages_max();
}

int64_t DenseLists::column_bytes(const KvOptions& options) {
  const int64_t columns = options.dense_columns().num_columns();
  return (int64_t{options.num_layers} * options.num_kv_heads + std::max<int64_t>(columns, 1)) * 4;
}

}  // namespace exec::cuda
