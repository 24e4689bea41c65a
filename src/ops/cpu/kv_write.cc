// The write of K and V into pages.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/attention.h"
#include "ops/cpu/attention_kernels.h"

namespace ops {
namespace {

using cpu::AttentionKernels;

void round_row(const AttentionKernels& kernels, core::DType type, const float* x, int32_t count,
               std::byte* out) {
  switch (type) {
    case core::DType::kBF16:
      return kernels.round_bf16(x, count, out);
    case core::DType::kF16:
      return kernels.round_f16(x, count, out);
    case core::DType::kF32:
      std::memcpy(out, x, static_cast<size_t>(count) * sizeof(float));
      return;
    default:
      break;
  }
  CHECK(false, "{} is no KV type", core::info(type).name);
}

// The page that a row of a segment is written to: an open one when the sealed pages are quantised.
std::byte* page_of(const KvLayer& kv, const AttentionSegment& segment, int32_t position,
                   int32_t head) {
  const int32_t page = position / kv.page.page_tokens;
  if (kv.page.is_quantised()) {
    return kv.open_frame(segment.open_frames[page - segment.position_begin / kv.page.page_tokens],
                         head);
  }
  const int32_t* frames = kv.heads[static_cast<size_t>(head)].kind.is_streaming()
                              ? segment.stream_frames
                              : segment.frames + head * segment.frames_head_stride;
  return kv.frame(frames[page], head);
}

void write_row(const AttentionKernels& kernels, const KvWriteArgs& args,
               const AttentionSegment& segment, int32_t i) {
  const core::PageShape page = args.kv.written_page();
  const int64_t row = segment.row_begin + i;
  const int32_t position = segment.position_begin + i;
  const int64_t row_bytes = core::row_bytes(page.type, page.head_dim);
  for (int32_t head = 0; head < args.kv.num_kv_heads(); ++head) {
    std::byte* place =
        page_of(args.kv, segment, position, head) + position % page.page_tokens * row_bytes;
    const int64_t offset = int64_t{head} * page.head_dim;
    round_row(kernels, page.type, args.k + row * args.k_stride + offset, page.head_dim, place);
    round_row(kernels, page.type, args.v + row * args.v_stride + offset, page.head_dim,
              place + page.page_tokens * row_bytes);
  }
}

void run_kv_write(const AttentionKernels& kernels, device::Stream& stream,
                  const KvWriteArgs& args) {
  // Elements for which waking a thread pays: it writes about 4 a nanosecond, and a wake takes
  // microseconds.
  constexpr int64_t kItemElements = 16 * 1024;
  const int64_t row_elements = 2 * int64_t{args.kv.num_kv_heads()} * args.kv.page.head_dim;
  const auto item_rows = static_cast<int32_t>(std::max<int64_t>(1, kItemElements / row_elements));
  for (const AttentionSegment& segment : args.segments) {
    CHECK(segment.num_selected == nullptr, "tables by position are written to");
    const int32_t rows = segment.row_end - segment.row_begin;
    stream.pool().parallel_for((rows + item_rows - 1) / item_rows, [&](int64_t item, int) {
      const auto begin = static_cast<int32_t>(item) * item_rows;
      for (int32_t i = begin; i < std::min(rows, begin + item_rows); ++i)
        write_row(kernels, args, segment, i);
    });
  }
}

}  // namespace

namespace avx2 {
void kv_write(device::Stream& stream, const KvWriteArgs& args) {
  run_kv_write(cpu::kAttentionAvx2, stream, args);
}
}  // namespace avx2

namespace avx512 {
void kv_write(device::Stream& stream, const KvWriteArgs& args) {
  run_kv_write(cpu::kAttentionAvx512, stream, args);
}
}  // namespace avx512

}  // namespace ops
