// A weight matrix in the memory of a GPU as products read it (ops/cuda/linear.h): a type and
// borrowed bytes whose layout the type decides. Read-only once loaded.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace ops::cuda {

// N outputs of K inputs. BF16: rows of K elements back to back. F8_E4M3: as fp8_rows.h says.
struct Weight {
  core::DType type = core::DType::kBF16;
  const std::byte* data = nullptr;  // aligned to 16 bytes
  int64_t rows = 0, cols = 0;       // N, K

  static Weight of(const __nv_bfloat16* data, int64_t rows, int64_t cols) {
    return {core::DType::kBF16, reinterpret_cast<const std::byte*>(data), rows, cols};
  }
  // REQUIRES: BF16.
  const __nv_bfloat16* bf16() const { return reinterpret_cast<const __nv_bfloat16*>(data); }
};

}  // namespace ops::cuda
