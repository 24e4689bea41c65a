// Element types of weights and KV, as GGUF and safetensors define them.
//
// Quantised types store a row as blocks of `block_elements` consecutive elements in `block_bytes`
// bytes; a row's length is a multiple of block_elements. The bytes of each block type are laid out
// as in GGUF (ops/reference/dequantize.h defines them).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace core {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  // Of KV pages alone: one byte an element, scales beside them (core/kv_shape.h).
  kI8,
  kF8E4M3
};
inline constexpr int kNumDTypes = 11;    // those that weights can have
inline constexpr int kNumKvDTypes = 13;  // with those of KV pages

struct DTypeInfo {
  std::string_view name;   // "F32", "Q4_K"
  int32_t block_elements;  // 1 for plain types
  int32_t block_bytes;
};

const DTypeInfo& info(DType type);
// The weights' type called `name` (as in DTypeInfo), or nothing.
std::optional<DType> find_dtype(std::string_view name);

// Bytes of one row of `elements` elements. REQUIRES: elements is a multiple of the block's.
int64_t row_bytes(DType type, int64_t elements);

}  // namespace core
