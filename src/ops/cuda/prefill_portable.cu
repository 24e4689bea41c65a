// Chooses the kernel of prompt rows, and launches the portable one.
#include <bit>
#include <numbers>

#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/prefill_portable.cuh"

namespace ops::cuda {
namespace {

PrefillVariant variant_of(const core::PageShape& page) {
  switch (page.type) {
    case core::DType::kBF16:
      return prefill_variant_bf16(page.head_dim);
    case core::DType::kF16:
    case core::DType::kF32:
      return prefill_variant_float(page.head_dim);
    default:
      return prefill_variant_quantised(page.head_dim);
  }
}

void check(const PrefillArgs& args) {
  const core::PageShape& page = args.kv.pool.page;
  const int32_t group = args.num_q_heads / args.kv.num_kv_heads;
  CHECK(args.num_q_heads == group * args.kv.num_kv_heads && group >= 1 && group <= 16,
        "{} query heads over {}", args.num_q_heads, args.kv.num_kv_heads);
  CHECK(page.head_dim % 16 == 0 && page.head_dim <= 256, "head dim {}", page.head_dim);
  CHECK(page.page_tokens == 16 || page.page_tokens == 32 || page.page_tokens == 64,
        "pages of {} tokens", page.page_tokens);
  CHECK(args.q_stride % 8 == 0 && args.out_stride % 2 == 0, "rows of {} and {} elements apart",
        args.q_stride, args.out_stride);
  CHECK(page.is_quantised() == (args.kv.open.base != nullptr), "{} and open pages",
        core::info(page.type).name);
}

}  // namespace

void prefill_attention(cudaStream_t stream, const PrefillArgs& args) {
  if (hopper_can(args, launch_limits().major)) {
    prefill_attention_hopper(stream, args);
  } else {
    prefill_attention_portable(stream, args);
  }
}

void prefill_attention_portable(cudaStream_t stream, const PrefillArgs& args) {
  check(args);
  const core::PageShape& page = args.kv.pool.page;
  const PrefillVariant variant = variant_of(page);
  PrefillLaunch launch = {.args = args,
                          .scale_log2 = args.softmax_scale * std::numbers::log2e_v<float>,
                          .group = args.num_q_heads / args.kv.num_kv_heads,
                          .page_shift = std::countr_zero(static_cast<uint32_t>(page.page_tokens))};
  launch.tile_positions = variant.rows / launch.group;
  int32_t tiles = 0;
  for (int32_t s = 0; s < args.num_segments; ++s) {
    const PrefillSegment& segment = args.host_segments[s];
    const int32_t rows = segment.row_end - segment.row_begin;
    tiles += (rows + launch.tile_positions - 1) / launch.tile_positions;
  }
  if (tiles == 0) return;
  cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       variant.shared_bytes);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(args.kv.num_kv_heads));
  variant.kernel<<<grid, static_cast<unsigned>(variant.threads),
                   static_cast<size_t>(variant.shared_bytes), stream>>>(launch);
  device::cuda::check_launch("prefill_attention_portable");
}

}  // namespace ops::cuda
