// Launches the decode kernel: which instance, how many stages, blocks and rows at a time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "ops/cuda/decode_attention.cuh"
#include "ops/cuda/decode_limits.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/tensor_map.h"

namespace ops::cuda {
namespace {

// (Row, head, part)s of a launch: what a block's table of them may take of shared memory.
constexpr int32_t kLaunchPlacesMax = 2048;
// Results of splits of a launch at most; more rows go in several launches. 128 rows of 32 query
// heads of 64k tokens, D 128.
constexpr int64_t kPartialBytesMax = int64_t{256} << 20;
constexpr int32_t kStagesMax = 8;

constexpr int64_t align(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

struct Parts {
  int32_t heads, part_heads;  // (KV head, part)s of a row; query heads of a part at most
};
Parts parts_of(int32_t num_q_heads, int32_t num_kv_heads) {
  const int32_t group = num_q_heads / num_kv_heads;
  const int32_t parts = (group + kPartHeads - 1) / kPartHeads;
  return {num_kv_heads * parts, std::min(group, kPartHeads)};
}

// How the workspace is laid out: counters, sums, results.
struct Workspace {
  int32_t launch_rows;
  int64_t counters, sums, bytes;  // bytes of each, bytes of all
};
Workspace workspace_of(int32_t rows_max, const Parts& parts, int32_t head_dim,
                       int32_t context_max) {
  const int32_t splits =
      std::min(kDecodeSplitsMax, (context_max + kDecodeSplitTokens - 1) / kDecodeSplitTokens);
  const int64_t row_results = int64_t{parts.heads} * parts.part_heads * std::max(splits, 1);
  const int64_t row_bytes = row_results * (head_dim + 2) * 4;
  Workspace workspace;
  workspace.launch_rows = static_cast<int32_t>(
      std::clamp<int64_t>(kPartialBytesMax / row_bytes, 1, kLaunchPlacesMax / parts.heads));
  // Of a fixed size, so that counters are never where another call has results.
  workspace.counters = align(int64_t{kLaunchPlacesMax * kCounters + 2} * 4);
  workspace.sums = align(std::min(rows_max, workspace.launch_rows) * row_results * 8);
  workspace.bytes = workspace.counters + workspace.sums +
                    std::min(rows_max, workspace.launch_rows) * row_results * head_dim * 4;
  return workspace;
}

DecodeVariant variant_of(const core::PageShape& page) {
  switch (page.type) {
    case core::DType::kBF16:
      return decode_variant_bf16(page.head_dim);
    case core::DType::kF16:
      return decode_variant_f16(page.head_dim);
    case core::DType::kF32:
      return decode_variant_f32(page.head_dim);
    case core::DType::kI8:
      return decode_variant_i8(page.head_dim);
    case core::DType::kF8E4M3:
      return decode_variant_e4m3(page.head_dim);
    default:
      return {};
  }
}

struct Schedule {
  int32_t stages = 0, blocks = 0;  // of an SM
  DecodeShared shared;
};
// Two blocks to an SM where each has three stages (one block merges while the other reads), else
// one with as many as there is room for.
Schedule schedule_of(const DecodeVariant& variant, const DecodeLaunch& launch) {
  constexpr int kReserved = 1024;  // that the system takes of a block's shared memory
  const LaunchLimits& limits = launch_limits();
  const int32_t places = launch.args.num_rows * launch.args.kv.num_kv_heads;
  const auto fit = [&](int32_t blocks) {
    const int32_t room = std::min(limits.shared_of_sm / blocks - kReserved, limits.shared_of_block);
    Schedule schedule = {.blocks = blocks};
    for (int32_t stages = 1; stages <= kStagesMax; ++stages) {
      const DecodeShared shared = decode_shared(variant.unit_bytes, stages, launch.part_heads,
                                                launch.args.kv.pool.page.head_dim, places);
      if (shared.bytes > room) break;
      schedule.stages = stages;
      schedule.shared = shared;
    }
    return schedule;
  };
  const Schedule two = fit(2);
  return two.stages >= 3 ? two : fit(1);
}

void launch_rows(cudaStream_t stream, const DecodeVariant& variant, const DecodeLaunch& launch) {
  const Schedule schedule = schedule_of(variant, launch);
  CHECK(schedule.stages > 0, "no shared memory for a unit of {} bytes", variant.unit_bytes);
  DecodeLaunch copy = launch;
  copy.stages = schedule.stages;
  cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       schedule.shared.bytes);
  ops::cuda::launch({.name = "decode_attention",
                     .grid = dim3(static_cast<unsigned>(launch.args.num_sms * schedule.blocks)),
                     .threads = kDecodeThreads,
                     .stream = stream,
                     .shared_bytes = static_cast<size_t>(schedule.shared.bytes)},
                    variant.kernel, copy, schedule.shared);
}

// How Hopper's copy engine finds units of pages.
void add_tensor_maps(DecodeLaunch& launch) {
  if (launch_limits().major < 9) return;
  constexpr int64_t kRingPagesMax = int64_t{1}
                                    << 30;  // how many there are is their owner's to know
  const KvPool& pool = launch.args.kv.pool;
  const auto map = [&](const std::byte* base, int64_t pages) {
    return tensor_map_pages(
        base, pages, pool.page_bytes, pool.page.page_tokens,
        static_cast<int32_t>(core::row_bytes(pool.page.type, pool.page.head_dim)), kUnitKeys);
  };
  launch.has_tensor_maps = true;
  launch.pool_map = map(pool.base, pool.num_frames);
  const std::byte* rings = launch.args.kv.rings.base;
  launch.ring_map = rings == nullptr ? launch.pool_map : map(rings, kRingPagesMax);
}

void check(const DecodeArgs& args) {
  const core::PageShape& page = args.kv.pool.page;
  const int32_t group = args.num_q_heads / args.kv.num_kv_heads;
  CHECK(args.num_q_heads == group * args.kv.num_kv_heads && group >= 1 && group <= 16,
        "{} query heads over {}", args.num_q_heads, args.kv.num_kv_heads);
  CHECK(page.page_tokens == 16 || page.page_tokens == 32 || page.page_tokens == 64,
        "pages of {} tokens", page.page_tokens);
  CHECK(args.q_stride % 8 == 0 && args.out_stride % 4 == 0, "rows of {} and {} elements apart",
        args.q_stride, args.out_stride);
  CHECK(args.num_sms > 0 && args.workspace != nullptr);
  CHECK((args.arrivals == nullptr) == (args.gather_begun == nullptr));
  CHECK(args.arrivals == nullptr || (args.list != nullptr && launch_limits().major >= 9));
}

}  // namespace

void decode_attention(cudaStream_t stream, const DecodeArgs& args) {
  if (args.num_rows == 0) return;
  check(args);
  const core::PageShape& page = args.kv.pool.page;
  const DecodeVariant variant = variant_of(page);
  CHECK(variant.kernel != nullptr, "no decode kernel for {} of {}", core::info(page.type).name,
        page.head_dim);
  const Parts parts = parts_of(args.num_q_heads, args.kv.num_kv_heads);
  const Workspace workspace = workspace_of(args.num_rows, parts, page.head_dim, args.context_max);
  DecodeLaunch launch = {
      .args = args,
      .scale_log2 = args.softmax_scale * std::numbers::log2e_v<float>,
      .group = args.num_q_heads / args.kv.num_kv_heads,
      .parts = parts.heads / args.kv.num_kv_heads,
      .part_heads = parts.part_heads,
      .heads = parts.heads,
      .unit_shift = std::countr_zero(static_cast<uint32_t>(page.page_tokens / kUnitKeys)),
      .stages = 0,
      .counters = reinterpret_cast<int32_t*>(args.workspace) + 2,
      .queue = reinterpret_cast<int32_t*>(args.workspace),
      .sums = reinterpret_cast<float2*>(args.workspace + workspace.counters),
      .partial = reinterpret_cast<float*>(args.workspace + workspace.counters + workspace.sums)};
  add_tensor_maps(launch);
  for (int32_t row = 0; row < args.num_rows; row += workspace.launch_rows) {
    DecodeArgs& rows = launch.args;
    rows.num_rows = std::min(workspace.launch_rows, args.num_rows - row);
    rows.rows.positions = args.rows.positions + row;
    rows.rows.row_tables = args.rows.row_tables + row;
    rows.q = args.q + row * args.q_stride;
    rows.out = args.out + row * args.out_stride;
    const int64_t place = int64_t{row} * args.kv.num_kv_heads;
    if (args.num_listed != nullptr) {
      rows.list = args.list + place * args.list_stride;
      rows.num_listed = args.num_listed + place;
    }
    launch_rows(stream, variant, launch);
    // The next rows' launch follows this one, which ends behind the gather.
    rows.arrivals = nullptr;
    rows.gather_begun = nullptr;
  }
}

int64_t decode_workspace_bytes(int32_t rows_max, int32_t num_q_heads, int32_t num_kv_heads,
                               int32_t head_dim, int32_t context_max, int) {
  return workspace_of(rows_max, parts_of(num_q_heads, num_kv_heads), head_dim, context_max).bytes;
}

int64_t decode_shared_least(const core::PageShape& page, int32_t rows_max, int32_t num_q_heads,
                            int32_t num_kv_heads, int32_t context_max) {
  const DecodeVariant variant = variant_of(page);
  if (variant.kernel == nullptr) return 0;
  const Parts parts = parts_of(num_q_heads, num_kv_heads);
  const Workspace workspace = workspace_of(rows_max, parts, page.head_dim, context_max);
  const int32_t places = std::min(rows_max, workspace.launch_rows) * num_kv_heads;
  return decode_shared(variant.unit_bytes, 1, parts.part_heads, page.head_dim, places).bytes;
}

}  // namespace ops::cuda
