// A layer with sealed and open pages of two sequences for the tests of kv_seal and page_stats:
// permuted frames, tables per head or shared, one head in rings.
#pragma once

#include <algorithm>
#include <random>

#include "ops/cuda/gpu_fixture.h"
#include "ops/cuda/page_ops.h"
#include "ops/kv_seal.h"

namespace ops::cuda {

class SealTest : public GpuTest {
 protected:
  static constexpr int32_t kHeads = 3, kColumns = 5, kRows = 16, kPages = 7, kRingHead = 1;
  static constexpr int32_t kRingSlots = 3, kRingFrames = 4;

  // Bits of any kind: subnormals, zeros, infinities and NaN among numbers of many sizes.
  void fill(std::vector<std::byte>& bytes, core::DType type) {
    std::normal_distribution<float> normal;
    const size_t element = type == core::DType::kF32 ? 4 : 2;
    for (size_t i = 0; i + element <= bytes.size(); i += element) {
      const auto kind = static_cast<int>(i / 4096 % 6);
      uint32_t bits = 0;
      const float x = std::ldexp(normal(random_), static_cast<int>(random_() % 13) - 6);
      std::memcpy(&bits, &x, 4);
      if (kind == 4) bits = random_();               // anything
      if (kind == 5) bits = random_() & 0x807fffff;  // subnormal
      if (type != core::DType::kF32) bits >>= 16;    // as BF16, or some half
      if (type == core::DType::kF16 && kind < 4) bits = 0x3000 | (bits & 0x8fff);
      std::memcpy(bytes.data() + i, &bits, element);
    }
  }

  void make(const core::PageShape& shape, bool table_per_head) {
    kv_ = {};
    kv_.pool.page = shape;
    kv_.pool.page_bytes = shape.page_bytes();
    kv_.pool.num_columns = kColumns;
    kv_.pool.num_frames = int64_t{kRows} * kColumns;
    kv_.rings = {.num_columns = 2, .sink_pages = 1, .ring_pages = kRingFrames - 1};
    kv_.num_kv_heads = kHeads;
    kv_.open = {.page_bytes = 4ll * shape.page_tokens * shape.head_dim, .num_columns = kHeads + 2};
    kv_.open_column = 1;
    frames_.assign(static_cast<size_t>(kv_.pool.num_frames * kv_.pool.page_bytes), std::byte{0xee});
    rings_.assign(static_cast<size_t>(kRingSlots * kRingFrames * 2 * kv_.pool.page_bytes),
                  std::byte{0xee});
    open_.resize(static_cast<size_t>(kRows * (kHeads + 2) * kv_.open.page_bytes));
    rows_.resize(kRows);
    for (int32_t i = 0; i < kRows; ++i) rows_[static_cast<size_t>(i)] = i;
    std::shuffle(rows_.begin(), rows_.end(), random_);
    per_head_ = table_per_head;
  }
  int64_t flat(int32_t sequence, int32_t head, int32_t page) const {
    return int64_t{rows_[static_cast<size_t>(sequence * kPages + page)]} * kColumns + column(head);
  }
  static int32_t column(int32_t head) { return head == kRingHead ? -1 : 2 * head; }
  // Where a page stands on the host.
  std::byte* page(int32_t sequence, int32_t head, int32_t page) {
    if (head != kRingHead) return frames_.data() + flat(sequence, head, page) * kv_.pool.page_bytes;
    const int64_t frame = page < 1 ? page : 1 + (page - 1) % (kRingFrames - 1);
    return rings_.data() +
           ((int64_t{sequence + 1} * kRingFrames + frame) * 2 + 1) * kv_.pool.page_bytes;
  }
  const std::byte* open_page(int32_t sequence, int32_t head, int32_t page) const {
    const int64_t row = rows_[static_cast<size_t>(sequence * kPages + page)];
    return open_.data() + (row * (kHeads + 2) + 1 + head) * kv_.open.page_bytes;
  }

  // Everything to the device; `there_` are the arrays that a call writes.
  SealArgs upload_all(const std::vector<SealArgs::Page>& pages) {
    kv_.pool.base = upload(frames_);
    kv_.rings.base = upload(rings_);
    kv_.open.base = upload(open_);
    std::vector<int32_t> columns, ring_columns;
    for (int32_t head = 0; head < kHeads; ++head) {
      columns.push_back(column(head));
      ring_columns.push_back(head == kRingHead ? 1 : -1);
    }
    kv_.columns = upload(columns);
    kv_.ring_columns = upload(ring_columns);
    std::vector<PageTable> tables;
    for (int32_t s = 0; s < 2; ++s) {
      std::vector<int32_t> frames(rows_.begin() + s * kPages, rows_.begin() + (s + 1) * kPages);
      const int32_t* open_rows = upload(frames);
      if (per_head_) {
        frames.clear();
        for (int32_t i = 0; i < kHeads * kPages; ++i)
          frames.push_back(static_cast<int32_t>(flat(s, i / kPages, i % kPages)));
      }
      tables.push_back({.frames = upload(frames),
                        .head_stride = per_head_ ? kPages : 0,
                        .slot = s + 1,
                        .open_rows = open_rows + 1,
                        .open_begin = 1});
    }
    return {.kv = kv_,
            .tables = upload(tables),
            .pages = upload(pages),
            .num_pages = upload(std::vector<int32_t>{static_cast<int32_t>(pages.size())}),
            .pages_max = static_cast<int32_t>(pages.size()) + 3};
  }

  std::mt19937 random_{11};
  KvLayer kv_;
  std::vector<std::byte> frames_, rings_, open_;
  std::vector<int32_t> rows_;
  bool per_head_ = false;
};

}  // namespace ops::cuda
