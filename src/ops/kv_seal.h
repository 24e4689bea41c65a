// Quantises a page when it is full: its BF16 rows become one-byte rows and scales, which is what
// every later row, the statistics, homes and the disk see.
//
// int8: K has a scale per channel, V one per page: scale = max |x| / 127, code = round to nearest
// even of x / scale, in [-127, 127]; an all-zero channel has scale 0 and codes 0 (never a clamped
// scale: KIVI 2402.02750; a floor of 1 destroyed output in another engine). fp8_e4m3: scale = max
// |x| / 448, the same two kinds, codes rounded to nearest even, saturating. Quotients are in f32.
// What holds an element that is not finite has scale NaN and codes 0, so that it shows.
//
// An element reads as bfloat16(code * scale), the product in f32: what attention multiplies and the
// statistics are taken from. Deterministic, the same bits in every version, padding included
// (zero). Thread: device worker. Allocates nothing.
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"
#include "ops/kv_layout.h"

namespace ops {

struct KvSealItem {
  const std::byte* open = nullptr;  // BF16 page: K (P, D), V (P, D)
  std::byte* page = nullptr;        // kI8 or kF8E4M3 page
};
struct KvSealArgs {
  core::PageShape page;
  std::span<const KvSealItem> items;
};
using KvSealFn = void (*)(device::Stream& stream, const KvSealArgs& args);

namespace reference {
void kv_seal(device::Stream& stream, const KvSealArgs& args);
// Row `token` of K (v == false) or V as attention reads it, (D) f32, of any KV type. The fp8 code
// of NaN, which no seal writes, is not defined.
void read_kv_row(const core::PageShape& shape, const std::byte* page, bool v, int32_t token,
                 float* out);
}  // namespace reference
namespace avx2 {
void kv_seal(device::Stream& stream, const KvSealArgs& args);
}
namespace avx512 {
void kv_seal(device::Stream& stream, const KvSealArgs& args);
}

}  // namespace ops
