#include "ops/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/check.h"

namespace ops::cuda {
namespace {

// The driver's encoder, found through the runtime: the program is not linked to libcuda, which
// machines without a GPU lack.
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encoder() {
  static const EncodeTiled kFound = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                                12000, cudaEnableDefault, &result);
    CHECK(status == cudaSuccess && result == cudaDriverEntryPointSuccess,
          "the driver has no cuTensorMapEncodeTiled: {}", cudaGetErrorString(status));
    return reinterpret_cast<EncodeTiled>(function);
  }();
  return kFound;
}

}  // namespace

CUtensorMap tensor_map_rows(const void* base, int64_t rows, int64_t col_bytes, int64_t row_bytes,
                            int box_rows, int box_blocks) {
  CHECK(col_bytes % 128 == 0, "rows of {} bytes", col_bytes);
  CUtensorMap map{};
  const cuuint64_t sizes[3] = {128, static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(col_bytes / 128)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(row_bytes), 128};
  const cuuint32_t box[3] = {128, static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(box_blocks)};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult status =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<void*>(base), sizes, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(status == CUDA_SUCCESS, "describing {} rows of {} bytes, {} apart: error {}", rows,
        col_bytes, row_bytes, static_cast<int>(status));
  return map;
}

CUtensorMap tensor_map_pages(const void* base, int64_t num_pages, int64_t page_bytes, int32_t rows,
                             int32_t row_bytes, int box_rows) {
  CUtensorMap map{};
  const auto panel = static_cast<cuuint32_t>(std::min(row_bytes, 128));
  const auto panels = static_cast<cuuint32_t>(row_bytes) / panel;
  const cuuint64_t sizes[5] = {panel, static_cast<cuuint64_t>(rows), panels, 2,
                               static_cast<cuuint64_t>(num_pages)};
  const cuuint64_t strides[4] = {static_cast<cuuint64_t>(row_bytes), panel,
                                 static_cast<cuuint64_t>(rows) * static_cast<cuuint64_t>(row_bytes),
                                 static_cast<cuuint64_t>(page_bytes)};
  const cuuint32_t box[5] = {panel, static_cast<cuuint32_t>(box_rows), panels, 2, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUresult status =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 5, const_cast<void*>(base), sizes, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                panel < 128 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(status == CUDA_SUCCESS, "describing {} pages of {} bytes, rows of {}: error {}", num_pages,
        page_bytes, row_bytes, static_cast<int>(status));
  return map;
}

CUtensorMap tensor_map_kv(const void* base, int64_t num_groups, int head_dim, int page_tokens) {
  CUtensorMap map{};
  const auto blocks = static_cast<cuuint32_t>(head_dim / 64);
  const auto row_bytes = static_cast<cuuint64_t>(head_dim) * 2;
  const cuuint64_t sizes[4] = {64, 8, blocks, static_cast<cuuint64_t>(num_groups)};
  const cuuint64_t strides[3] = {row_bytes, 128, 8 * row_bytes};
  const cuuint32_t box[4] = {64, 8, blocks, static_cast<cuuint32_t>(page_tokens / 8)};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult status =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(base), sizes, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(status == CUDA_SUCCESS, "describing {} groups of tokens of {} channels: error {}",
        num_groups, head_dim, static_cast<int>(status));
  return map;
}

}  // namespace ops::cuda
