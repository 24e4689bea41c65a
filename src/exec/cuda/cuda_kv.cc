#include "exec/cuda/cuda_kv.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace exec::cuda {

using device::cuda::Buffer;
using device::cuda::Stream;

base::Result<CudaKv> CudaKv::create(Stream& stream, const KvOptions& options,
                                    const CudaKvSizes& sizes) {
  CudaKv kv;
  kv.options_ = options;
  kv.sizes_ = sizes;
  kv.columns_ = options.block_columns();
  kv.ring_columns_ = options.ring_columns();
  kv.selecting_ = options.selecting_columns();
  RETURN_IF_ERROR(kv.allocate_pools(stream));
  RETURN_IF_ERROR(kv.write_heads(stream));
  return kv;
}

base::Result<void> CudaKv::allocate_pools(Stream& stream) {
  const auto allocate = [&](int64_t bytes, const char* what, Buffer* to) -> base::Result<void> {
    ASSIGN_OR_RETURN(*to, Buffer::allocate(bytes, what));
    stream.fill(to->data(), 0, bytes);
    return {};
  };
  const int64_t page_bytes = options_.page.page_bytes();
  pool_ = {.page = options_.page,
           .page_bytes = page_bytes,
           .num_columns = columns_.num_columns(),
           .num_frames = int64_t{sizes_.num_rows} * columns_.num_columns() + sizes_.scratch_frames};
  RETURN_IF_ERROR(allocate(pool_.num_frames * page_bytes, "KV pages", &frames_));
  pool_.base = frames_.data();

  const core::RingShape ring = options_.ring();
  rings_ = {.num_columns = ring_columns_.num_columns(),
            .sink_pages = ring.sink_pages,
            .ring_pages = ring.ring_pages};
  const int64_t ring_pages =
      int64_t{options_.max_num_seqs} * ring.frames() * ring_columns_.num_columns();
  RETURN_IF_ERROR(allocate(ring_pages * page_bytes, "rings of streaming heads", &ring_pages_));
  rings_.base = ring_pages_.data();

  if (options_.page.is_quantised()) {
    open_ = {.page_bytes = options_.open_page().page_bytes(),
             .num_columns = options_.num_layers * options_.num_kv_heads};
    const int64_t bytes = int64_t{options_.open_rows()} * open_.num_columns * open_.page_bytes;
    RETURN_IF_ERROR(allocate(bytes, "open pages", &open_pages_));
    open_.base = open_pages_.data();
  }
  stats_ = {.stats_bytes = options_.page.stats_bytes(), .num_blocks = sizes_.num_blocks};
  const int64_t statistics =
      int64_t{selecting_.num_columns()} * sizes_.num_blocks * stats_.stats_bytes;
  RETURN_IF_ERROR(allocate(statistics, "statistics of pages", &statistics_));
  stats_.base = statistics_.data();
  return {};
}

int64_t CudaKv::head_bytes(const KvOptions& options) {
  return (3 * int64_t{options.num_layers} * options.num_kv_heads +
          options.selecting_columns().num_columns()) *
             int64_t{sizeof(int32_t)} +
         std::ssize(options.heads.kinds) * int64_t{sizeof(core::HeadKind)};
}

base::Result<void> CudaKv::write_heads(Stream& stream) {
  std::vector<int32_t> columns;
  for (const core::KvColumns* kind : {&columns_, &ring_columns_, &selecting_}) {
    for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
      for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
        columns.push_back(kind->column(layer, head));
      }
    }
  }
  std::vector<int32_t> frame_column_of(static_cast<size_t>(selecting_.num_columns()));
  for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
    for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
      const int32_t selecting = selecting_.column(layer, head);
      if (selecting < 0) continue;
      frame_column_of[static_cast<size_t>(selecting)] = columns_.column(layer, head);
    }
  }
  const auto write = [&](const void* from, size_t bytes, Buffer* to) -> base::Result<void> {
    ASSIGN_OR_RETURN(*to, Buffer::allocate(static_cast<int64_t>(bytes), "tables of heads"));
    stream.copy(to->data(), from, static_cast<int64_t>(bytes));
    return {};
  };
  RETURN_IF_ERROR(write(columns.data(), columns.size() * 4, &heads_));
  RETURN_IF_ERROR(write(frame_column_of.data(), frame_column_of.size() * 4, &frame_column_of_));
  const std::vector<core::HeadKind>& kinds = options_.heads.kinds;
  RETURN_IF_ERROR(write(kinds.data(), kinds.size() * sizeof(core::HeadKind), &kinds_));
  return stream.synchronize();  // the copies read vectors that end here
}

ops::cuda::KvLayer CudaKv::layer(int32_t layer) const {
  ops::cuda::KvLayer view{.pool = pool_,
                          .rings = rings_,
                          .open = open_,
                          .num_kv_heads = options_.num_kv_heads,
                          .columns = of_layer(kFrame, layer),
                          .ring_columns = of_layer(kRing, layer)};
  if (kinds_.size() > 0) {
    view.kinds = kinds_.as<core::HeadKind>() + int64_t{layer} * options_.num_kv_heads;
  }
  view.open_column = layer * options_.num_kv_heads;
  return view;
}

// A block is one run of pages, each K then V: halves of pages follow each other at one distance.
void CudaKv::copy_tokens(Stream& stream, const core::BlockCopy& copy) const {
  CHECK(!options_.page.is_quantised() && rings_.num_columns == 0);
  const int64_t row_bytes = core::row_bytes(options_.page.type, options_.page.head_dim);
  const int64_t half = options_.page.page_tokens * row_bytes;
  stream.copy_rows(page(core::index(copy.to), 0), half, page(core::index(copy.from), 0), half,
                   copy.num_tokens * row_bytes, int64_t{2} * pool_.num_columns);
}

void CudaKv::copy_open(Stream& stream, int32_t from, int32_t to, int32_t layer_begin,
                       int32_t layer_end) const {
  const auto at = [&](int32_t row, int32_t layer) {
    const int64_t column = int64_t{layer} * options_.num_kv_heads;
    return open_.base + (int64_t{row} * open_.num_columns + column) * open_.page_bytes;
  };
  stream.copy(at(to, layer_begin), at(from, layer_begin),
              int64_t{layer_end - layer_begin} * options_.num_kv_heads * open_.page_bytes);
}

}  // namespace exec::cuda
