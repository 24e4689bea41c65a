#include "store/kv_pool.h"

#include <cstring>
#include <utility>

namespace store {

base::Result<KvPool> KvPool::create(const KvPoolShape& shape) {
  CHECK(shape.num_layers > 0 && shape.num_kv_heads > 0 && shape.page_tokens > 0 &&
        shape.num_blocks > 0);
  ASSIGN_OR_RETURN(device::Buffer buffer,
                   device::Buffer::allocate(shape.block_bytes() * shape.num_blocks, "KV pages"));
  return KvPool(shape, std::move(buffer));
}

std::byte* KvPool::column(int32_t layer, int32_t head) const {
  CHECK(layer >= 0 && layer < shape_.num_layers, "layer {}", layer);
  CHECK(head >= 0 && head < shape_.num_kv_heads, "head {}", head);
  const int64_t column = int64_t{layer} * shape_.num_kv_heads + head;
  return buffer_.data() + column * shape_.num_blocks * shape_.page_bytes();
}

std::byte* KvPool::page(int32_t layer, core::BlockId block, int32_t head) const {
  CHECK(core::index(block) >= 0 && core::index(block) < shape_.num_blocks, "block {}",
        core::index(block));
  return column(layer, head) + core::index(block) * shape_.page_bytes();
}

void KvPool::copy_tokens(core::BlockId from, core::BlockId to, int32_t num_tokens) {
  CHECK(num_tokens >= 0 && num_tokens <= shape_.page_tokens, "{} tokens", num_tokens);
  const int64_t token_bytes = core::row_bytes(shape_.type, shape_.head_dim);
  const int64_t v_offset = shape_.page_tokens * token_bytes;
  const size_t bytes = static_cast<size_t>(num_tokens * token_bytes);
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      const std::byte* source = page(layer, from, head);
      std::byte* target = page(layer, to, head);
      std::memcpy(target, source, bytes);
      std::memcpy(target + v_offset, source + v_offset, bytes);
    }
  }
}

}  // namespace store
