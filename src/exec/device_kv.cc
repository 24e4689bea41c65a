#include "exec/device_kv.h"

#include <cstring>

#include "base/check.h"

namespace exec {

base::Result<DeviceKv> DeviceKv::create(const KvOptions& options, int32_t num_rows,
                                        int32_t num_blocks) {
  DeviceKv kv;
  kv.options_ = options;
  kv.columns_ = options.block_columns();
  kv.ring_columns_ = options.ring_columns();
  kv.selecting_ = options.selecting_columns();
  kv.ring_ = options.ring();
  ASSIGN_OR_RETURN(kv.frames_, store::PagePool::create({.num_columns = kv.columns_.num_columns(),
                                                        .num_rows = num_rows,
                                                        .item_bytes = options.page.page_bytes()},
                                                       "KV pages"));
  ASSIGN_OR_RETURN(kv.rings_,
                   store::PagePool::create({.num_columns = kv.ring_columns_.num_columns(),
                                            .num_rows = options.max_num_seqs * kv.ring_.frames(),
                                            .item_bytes = options.page.page_bytes()},
                                           "rings of streaming heads"));
  ASSIGN_OR_RETURN(kv.stats_, store::PagePool::create({.num_columns = kv.selecting_.num_columns(),
                                                       .num_rows = num_blocks,
                                                       .item_bytes = options.page.stats_bytes()},
                                                      "page statistics"));
  const bool quantised = options.page.is_quantised();
  ASSIGN_OR_RETURN(kv.open_, store::PagePool::create(
                                 {.num_columns = options.open_layers() * options.num_kv_heads,
                                  .num_rows = options.max_num_seqs,
                                  .item_bytes = options.open_page().page_bytes()},
                                 "open pages"));
  for (int32_t layer = 0; layer < options.num_layers; ++layer) {
    for (int32_t head = 0; head < options.num_kv_heads; ++head) {
      const int32_t column = kv.columns_.column(layer, head);
      const int32_t ring_column = kv.ring_columns_.column(layer, head);
      kv.heads_.push_back(
          {.base = ring_column >= 0 ? kv.rings_.column(ring_column) : kv.frames_.column(column),
           .kind = options.heads.at(layer, head),
           .open_base =
               quantised ? kv.open_.column(layer * options.num_kv_heads + head) : nullptr});
    }
  }
  return kv;
}

void DeviceKv::copy_tokens(const core::BlockCopy& copy) {
  const core::PageShape& page = options_.page;
  CHECK(copy.num_tokens >= 0 && copy.num_tokens <= page.page_tokens, "{} of {} tokens",
        copy.num_tokens, page.page_tokens);
  CHECK(!page.is_quantised() && ring_columns_.num_columns() == 0);
  const int64_t row_bytes = core::row_bytes(page.type, page.head_dim);
  const int64_t v_offset = page.page_tokens * row_bytes;
  const auto bytes = static_cast<size_t>(copy.num_tokens * row_bytes);
  for (int32_t column = 0; column < columns_.num_columns(); ++column) {
    const std::byte* const from = frames_.item(column, core::index(copy.from));
    std::byte* const to = frames_.item(column, core::index(copy.to));
    std::memcpy(to, from, bytes);
    std::memcpy(to + v_offset, from + v_offset, bytes);
  }
}

}  // namespace exec
