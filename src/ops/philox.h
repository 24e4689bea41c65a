// Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", 2011): random bits as a pure function of a key and a counter, so draws need no state and
// no order. constexpr, so that kernels draw with the same code.
#pragma once

#include <array>
#include <cstdint>

namespace ops {

constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                         std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits: draw number `index` of stream `seed`.
constexpr double philox_uniform(uint64_t seed, uint64_t index) {
  const auto bits = philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                           {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return ((uint64_t{bits[0]} << 21) ^ (bits[1] >> 11)) * 0x1p-53;
}

}  // namespace ops
