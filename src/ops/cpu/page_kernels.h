// What an instruction set provides for page statistics and scores, called by ops/cpu/page_ops.cc.
//
// Plain functions only, for the reason given in ops/cpu/attention_kernels.h. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>

namespace core {
enum class BlockId : int32_t;
}

namespace ops::cpu {

// Keys of a logical page at most: those of a page.
inline constexpr int kPageTokensMax = 64;

// One logical page of one KV head.
struct LogicalPage {
  const std::byte* keys = nullptr;  // (tokens, D)
  const float* scales = nullptr;    // (D), of quantised keys
  int32_t tokens = 0;               // a power of two, at most kPageTokensMax
  int32_t head_dim = 0;             // D: a multiple of 16
  uint16_t* stats = nullptr;        // (2, D) BF16: centre, half-width
};
using PageStatsKernel = void (*)(const LogicalPage& page);

// Some pages of a sequence in one column, and the queries of one row.
struct PageRun {
  const uint16_t* q = nullptr;  // (G, D) BF16
  int32_t group = 0;            // G
  int32_t head_dim = 0;         // D: a multiple of 16
  int32_t logical_shift = 0;    // a page has 2^logical_shift logical pages
  const std::byte* stats = nullptr;
  const core::BlockId* blocks = nullptr;  // (num_pages)
  int32_t num_pages = 0;
  float* scores = nullptr;  // (num_pages)
};
using PageScoreKernel = void (*)(const PageRun& run);

// Of one type of keys, by core::PageStatsKind.
struct PageStatsKernels {
  PageStatsKernel cuboid_mean, min_max, mean_std, mean;
};

struct PageKernels {
  PageStatsKernels bf16, f16, f32, i8, f8;
  PageScoreKernel score;
};

extern const PageKernels kPageAvx2;
extern const PageKernels kPageAvx512;

}  // namespace ops::cpu
