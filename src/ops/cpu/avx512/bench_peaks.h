// Loops that do nothing but one instruction: 12 independent chains of `rounds`, or loads of every
// byte. The results only keep the work from being removed. See the rule in ops/cpu/panel.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ops::cpu {

constexpr int64_t kPeakFlopsPerRound = 12 * 64;

int peak_bf16(int64_t rounds);
int peak_int16(int64_t rounds);
int64_t peak_read(const std::byte* data, int64_t bytes);  // 64-byte aligned, a multiple of 256

}  // namespace ops::cpu
