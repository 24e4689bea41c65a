// Random GGUF blocks with scales of ordinary size, for tests and benchmarks.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/dtype.h"

namespace ops::cuda {

inline constexpr core::DType kQuantisedTypes[] = {core::DType::kQ8_0, core::DType::kQ4_0,
                                                  core::DType::kQ4_1, core::DType::kQ4_K,
                                                  core::DType::kQ6_K};

// Rows of `cols` weights back to back. Every byte is random but for the halves, which are positive
// and between 2^-9 and 2^-5 (minima of Q4_1 of either sign).
inline std::vector<std::byte> random_blocks(core::DType type, int64_t rows, int64_t cols,
                                            uint32_t seed) {
  const core::DTypeInfo& info = core::info(type);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * core::row_bytes(type, cols)));
  std::mt19937 random(seed);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() & 0xff);
  const auto half = [&](std::byte* at, bool any_sign) {
    // Exponents 6 to 9 of 15 below one.
    uint32_t bits = (6 + random() % 4) << 10 | (random() & 0x3ff);
    if (any_sign) bits |= (random() & 1) << 15;
    const auto stored = static_cast<uint16_t>(bits);
    std::memcpy(at, &stored, 2);
  };
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(info.block_bytes)) {
    half(&bytes[at + (type == core::DType::kQ6_K ? 208 : 0)], false);
    if (type == core::DType::kQ4_1) half(&bytes[at + 2], true);
    if (type == core::DType::kQ4_K) half(&bytes[at + 2], false);
  }
  return bytes;
}

}  // namespace ops::cuda
