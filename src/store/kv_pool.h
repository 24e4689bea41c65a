// The bytes behind block ids in the device tier: every KV page of every layer in one allocation.
//
// Layout: layer by layer, head by head, and within a head block by block, so that a head's pages of
// consecutive blocks are one run of memory. Pages are committed by the system as they are first
// written. Thread: the engine's (between steps) and the op that runs.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "core/dtype.h"
#include "core/ids.h"
#include "device/buffer.h"

namespace store {

struct KvPoolShape {
  int32_t num_layers = 0, num_kv_heads = 0, head_dim = 0;  // L, Hk, D
  int32_t page_tokens = 0;                                 // P
  core::DType type = core::DType::kBF16;
  int32_t num_blocks = 0;

  int64_t page_bytes() const { return 2 * int64_t{page_tokens} * core::row_bytes(type, head_dim); }
  int64_t block_bytes() const { return page_bytes() * num_kv_heads * num_layers; }
};

class KvPool {
 public:
  // Errors: kTooLarge with the size.
  static base::Result<KvPool> create(const KvPoolShape& shape);

  const KvPoolShape& shape() const { return shape_; }
  // Block 0's page of a layer and head; the next block's is page_bytes() behind it.
  std::byte* column(int32_t layer, int32_t head) const;

  // Copies K and V of the first `num_tokens` tokens of every page of `from` to `to`. REQUIRES: 0 <=
  // num_tokens <= P.
  void copy_tokens(core::BlockId from, core::BlockId to, int32_t num_tokens);

 private:
  KvPool(const KvPoolShape& shape, device::Buffer buffer)
      : shape_(shape), buffer_(std::move(buffer)) {}
  std::byte* page(int32_t layer, core::BlockId block, int32_t head) const;

  KvPoolShape shape_;
  device::Buffer buffer_;
};

}  // namespace store
