// What an instruction set provides for quantising pages: see ops/kv_seal.h.
//
// Plain functions only, for the reason given in ops/cpu/attention_kernels.h. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ops::cpu {

// Quantises one page of BF16 K and V (page_tokens, head_dim) each; the bytes behind the scales are
// left as they are.
using SealPageFn = void (*)(const std::byte* open, int32_t page_tokens, int32_t head_dim,
                            std::byte* page);

struct KvSealKernels {
  SealPageFn i8, f8_e4m3;
};

extern const KvSealKernels kKvSealAvx2;
extern const KvSealKernels kKvSealAvx512;

}  // namespace ops::cpu
