// Sequences with random q, k and v in scattered pages on the GPU and in the host's copy of them,
// for tests of prompt attention: what a kernel computes is held to the reference or to the kernel
// itself. Keys that no row of a call sees are NaN.
#pragma once

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "device/cuda/runtime.h"
#include "ops/attention.h"
#include "ops/cuda/attention.h"

namespace ops::cuda {

struct PrefillShape {
  int32_t num_q_heads, num_kv_heads, head_dim, page_tokens;
  std::vector<core::HeadKind> kinds = {};  // (Hk); empty: retrieval heads
  enum class Tables : uint8_t { kRows, kHeads } tables = Tables::kRows;
  // Streaming heads live in rings that hold what a call of this many rows sees; 0: in blocks.
  int32_t ring_rows = 0;
  float q_scale = 1.5f;  // standard deviation: the larger, the fewer keys decide a row
};

// Rows [begin, end) of a sequence.
struct PrefillPart {
  int sequence;
  int32_t begin, end;
};

class PrefillWorld {
 public:
  static constexpr int32_t kFirstColumn = 3;  // the layer is not the pool's first

  PrefillWorld(const PrefillShape& shape, const std::vector<int32_t>& lengths, uint32_t seed)
      : shape_(shape), lengths_(lengths), random_(seed) {
    page_ = {.type = core::DType::kBF16,
             .page_tokens = shape.page_tokens,
             .logical_page_tokens = shape.page_tokens,
             .head_dim = shape.head_dim};
    place_pages();
    for (int32_t length : lengths) {
      q_.push_back(draw(length, shape.num_q_heads, shape.q_scale));
      k_.push_back(draw(length, shape.num_kv_heads, 1.5f));
      v_.push_back(draw(length, shape.num_kv_heads, 1.0f));
    }
  }

  // The output (rows of the parts one after the other, Hq, D) of one call over the parts, from
  // pages that hold just the keys that the parts see. Rows of no part, one in front of each, stay.
  std::vector<uint16_t> run(const std::vector<PrefillPart>& parts, int num_sms);
  // The same by the definition, as floats.
  std::vector<float> expect(const std::vector<PrefillPart>& parts);

  float largest_value() const {
    float largest = 0.0f;
    for (const auto& values : v_) {
      for (uint16_t x : values) largest = std::max(largest, std::fabs(to_float(x)));
    }
    return largest;
  }
  static float to_float(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

 private:
  core::HeadKind kind(int32_t head) const {
    return shape_.kinds.empty() ? core::HeadKind{} : shape_.kinds[static_cast<size_t>(head)];
  }
  bool in_ring(int32_t head) const { return shape_.ring_rows > 0 && kind(head).is_streaming(); }
  int32_t pages(int sequence) const {
    return (lengths_[static_cast<size_t>(sequence)] + shape_.page_tokens - 1) / shape_.page_tokens;
  }
  std::vector<uint16_t> draw(int32_t length, int32_t heads, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<uint16_t> x(static_cast<size_t>(length) *
                            static_cast<size_t>(heads * shape_.head_dim));
    for (uint16_t& element : x) {
      element = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random_)) >> 16);
    }
    return x;
  }
  void place_pages();
  // Of the pool or of the rings, in pages.
  int64_t frame(int sequence, int32_t page, int32_t head) const;
  bool sees(const PrefillPart& part, int32_t key, int32_t head) const;
  void write_keys(const std::vector<PrefillPart>& parts);
  template <typename T>
  T* upload(const std::vector<T>& values);
  std::vector<PrefillSegment> segments_of(const std::vector<PrefillPart>& parts) const;
  PageTable upload_table(const PrefillPart& part);
  KvLayer upload_layer();
  // The segments' rows of `out`, of which nothing else may have been written.
  std::vector<uint16_t> rows_of(const std::vector<PrefillSegment>& segments,
                                const std::vector<uint16_t>& out, int32_t out_stride) const;

  PrefillShape shape_;
  std::vector<int32_t> lengths_;
  std::mt19937 random_;
  core::PageShape page_;
  std::vector<std::vector<uint16_t>> q_, k_, v_;
  int32_t num_columns_ = 0, num_rows_ = 0;
  std::vector<int32_t> columns_, ring_columns_;
  int32_t num_ring_columns_ = 0;
  core::RingShape ring_;
  std::vector<std::vector<int32_t>> tables_;  // of a sequence: rows, or (Hk, pages) flat frames
  std::vector<uint16_t> pool_, ring_pool_;
  std::vector<device::cuda::Buffer> uploads_;
};

inline void PrefillWorld::place_pages() {
  const int32_t num_heads = shape_.num_kv_heads;
  for (int32_t head = 0; head < num_heads; ++head) {
    columns_.push_back(in_ring(head) ? -1 : kFirstColumn + num_columns_++);
    ring_columns_.push_back(in_ring(head) ? 1 + num_ring_columns_++ : -1);
  }
  num_columns_ += kFirstColumn + 1;
  num_ring_columns_ += 2;
  for (size_t i = 0; i < lengths_.size(); ++i) num_rows_ += pages(static_cast<int>(i));
  num_rows_ += 2;
  const bool of_heads = shape_.tables == PrefillShape::Tables::kHeads;
  std::vector<int32_t> frames(static_cast<size_t>(of_heads ? num_rows_ * num_columns_ : num_rows_));
  std::iota(frames.begin(), frames.end(), 0);
  std::ranges::shuffle(frames, random_);
  size_t next = 0;
  for (size_t i = 0; i < lengths_.size(); ++i) {
    const auto count = static_cast<size_t>(pages(static_cast<int>(i)) * (of_heads ? num_heads : 1));
    tables_.emplace_back(frames.begin() + static_cast<ptrdiff_t>(next),
                         frames.begin() + static_cast<ptrdiff_t>(next + count));
    next += count;
  }
  pool_.resize(static_cast<size_t>(num_rows_ * num_columns_) *
               static_cast<size_t>(page_.page_bytes() / 2));
  if (shape_.ring_rows > 0) {
    core::HeadKinds kinds{1, num_heads, shape_.kinds};
    ring_ = core::ring_shape(kinds, shape_.page_tokens, shape_.ring_rows);
    ring_pool_.resize(lengths_.size() * static_cast<size_t>(ring_.frames() * num_ring_columns_) *
                      static_cast<size_t>(page_.page_bytes() / 2));
  }
}

inline int64_t PrefillWorld::frame(int sequence, int32_t page, int32_t head) const {
  if (in_ring(head)) {
    return int64_t{sequence * ring_.frames() + ring_.frame_of(page)} * num_ring_columns_ +
           ring_columns_[static_cast<size_t>(head)];
  }
  const auto& table = tables_[static_cast<size_t>(sequence)];
  if (shape_.tables == PrefillShape::Tables::kHeads) {
    return table[static_cast<size_t>(head * pages(sequence) + page)];
  }
  return int64_t{table[static_cast<size_t>(page)]} * num_columns_ +
         columns_[static_cast<size_t>(head)];
}

inline bool PrefillWorld::sees(const PrefillPart& part, int32_t key, int32_t head) const {
  const core::HeadKind of = kind(head);
  return key < part.end && (!of.is_streaming() || key < of.sink || key > part.begin - of.local);
}

inline void PrefillWorld::write_keys(const std::vector<PrefillPart>& parts) {
  std::ranges::fill(pool_, uint16_t{0xffff});
  std::ranges::fill(ring_pool_, uint16_t{0xffff});
  const auto dim = static_cast<size_t>(shape_.head_dim);
  for (const PrefillPart& part : parts) {
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      auto& pool = in_ring(head) ? ring_pool_ : pool_;
      for (int32_t key = 0; key < part.end; ++key) {
        if (!sees(part, key, head)) continue;
        const int64_t place = frame(part.sequence, key / shape_.page_tokens, head);
        uint16_t* page = pool.data() + place * (page_.page_bytes() / 2);
        const size_t from = (static_cast<size_t>(key * shape_.num_kv_heads + head)) * dim;
        uint16_t* k = page + static_cast<size_t>(key % shape_.page_tokens) * dim;
        uint16_t* v = k + static_cast<size_t>(shape_.page_tokens) * dim;
        const auto sequence = static_cast<size_t>(part.sequence);
        std::memcpy(k, k_[sequence].data() + from, dim * 2);
        std::memcpy(v, v_[sequence].data() + from, dim * 2);
      }
    }
  }
}

template <typename T>
T* PrefillWorld::upload(const std::vector<T>& values) {
  auto buffer = device::cuda::Buffer::allocate(
      static_cast<int64_t>(std::max<size_t>(values.size(), 1) * sizeof(T)), "a test");
  EXPECT_TRUE(buffer.ok());
  uploads_.push_back(std::move(buffer).value());
  auto stream = device::cuda::Stream::create();
  stream.value().copy(uploads_.back().data(), values.data(),
                      static_cast<int64_t>(values.size() * sizeof(T)));
  EXPECT_TRUE(stream.value().synchronize().ok());
  return uploads_.back().template as<T>();
}

// Rows of no segment stand in front of each one.
inline std::vector<PrefillSegment> PrefillWorld::segments_of(
    const std::vector<PrefillPart>& parts) const {
  std::vector<PrefillSegment> segments;
  int32_t num_rows = 0;
  for (const PrefillPart& part : parts) {
    segments.push_back({.row_begin = num_rows + 1,
                        .row_end = num_rows + 1 + part.end - part.begin,
                        .position_begin = part.begin,
                        .table = static_cast<int32_t>(segments.size())});
    num_rows = segments.back().row_end;
  }
  return segments;
}

// Entries of pages that are not seen are wild.
inline PageTable PrefillWorld::upload_table(const PrefillPart& part) {
  std::vector<int32_t> entries = tables_[static_cast<size_t>(part.sequence)];
  for (int32_t i = 0; i < static_cast<int32_t>(entries.size()); ++i) {
    const int32_t page = i % pages(part.sequence);
    if (page * shape_.page_tokens >= part.end) entries[static_cast<size_t>(i)] = 1 << 28;
  }
  const bool of_heads = shape_.tables == PrefillShape::Tables::kHeads;
  return {.frames = upload(entries),
          .head_stride = of_heads ? pages(part.sequence) : 0,
          .slot = part.sequence};
}

inline KvLayer PrefillWorld::upload_layer() {
  KvLayer kv;
  kv.pool = {.base = reinterpret_cast<std::byte*>(upload(pool_)),
             .page = page_,
             .page_bytes = page_.page_bytes(),
             .num_columns = num_columns_,
             .num_frames = num_rows_ * num_columns_};
  if (shape_.ring_rows > 0) {
    kv.rings = {.base = reinterpret_cast<std::byte*>(upload(ring_pool_)),
                .num_columns = num_ring_columns_,
                .sink_pages = ring_.sink_pages,
                .ring_pages = ring_.ring_pages};
  }
  kv.num_kv_heads = shape_.num_kv_heads;
  kv.columns = upload(columns_);
  kv.ring_columns = upload(ring_columns_);
  kv.kinds = shape_.kinds.empty() ? nullptr : upload(shape_.kinds);
  return kv;
}

inline std::vector<uint16_t> PrefillWorld::rows_of(const std::vector<PrefillSegment>& segments,
                                                   const std::vector<uint16_t>& out,
                                                   int32_t out_stride) const {
  const int32_t row_elements = shape_.num_q_heads * shape_.head_dim;
  std::vector<uint16_t> rows;
  int64_t untouched = 0;
  for (const PrefillSegment& segment : segments) {
    const uint16_t* row = out.data() + (segment.row_begin - 1) * out_stride;
    untouched += std::count(row, row + out_stride, 0xffff);
    for (int32_t i = segment.row_begin; i < segment.row_end; ++i) {
      row = out.data() + i * out_stride;
      rows.insert(rows.end(), row, row + row_elements);
      EXPECT_EQ(std::count(row + row_elements, row + out_stride, 0xffff),
                out_stride - row_elements);
    }
  }
  EXPECT_EQ(untouched, static_cast<int64_t>(segments.size()) * out_stride);
  return rows;
}

inline std::vector<uint16_t> PrefillWorld::run(const std::vector<PrefillPart>& parts, int num_sms) {
  write_keys(parts);
  uploads_.clear();
  const int32_t row_elements = shape_.num_q_heads * shape_.head_dim;
  const int32_t q_stride = row_elements + 2 * shape_.num_kv_heads * shape_.head_dim;
  const int32_t out_stride = row_elements + 8;
  const std::vector<PrefillSegment> segments = segments_of(parts);
  const int32_t num_rows = segments.back().row_end;
  std::vector<uint16_t> q(static_cast<size_t>(num_rows * q_stride), 0xffff);
  std::vector<uint16_t> out(static_cast<size_t>(num_rows * out_stride), 0xffff);
  std::vector<PageTable> tables;
  for (size_t i = 0; i < parts.size(); ++i) {
    tables.push_back(upload_table(parts[i]));
    for (int32_t row = segments[i].row_begin; row < segments[i].row_end; ++row) {
      const int32_t position = parts[i].begin + row - segments[i].row_begin;
      std::memcpy(q.data() + row * q_stride,
                  q_[static_cast<size_t>(parts[i].sequence)].data() + position * row_elements,
                  static_cast<size_t>(row_elements) * 2);
    }
  }

  PrefillArgs args;
  args.kv = upload_layer();
  args.q = reinterpret_cast<const __nv_bfloat16*>(upload(q));
  args.q_stride = q_stride;
  args.num_q_heads = shape_.num_q_heads;
  args.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  args.tables = upload(tables);
  args.segments = upload(segments);
  args.host_segments = segments.data();
  args.num_segments = static_cast<int32_t>(segments.size());
  auto* device_out = upload(out);
  args.out = reinterpret_cast<__nv_bfloat16*>(device_out);
  args.out_stride = out_stride;
  args.num_sms = num_sms;

  auto stream = device::cuda::Stream::create();
  EXPECT_TRUE(hopper_can(args, 9));
  prefill_attention_hopper(stream.value().handle(), args);
  stream.value().copy(out.data(), device_out, static_cast<int64_t>(out.size() * 2));
  const auto done = stream.value().synchronize();
  EXPECT_TRUE(done.ok()) << done.error().message;
  if (!done.ok()) std::abort();  // nothing on this GPU can be trusted any more
  return rows_of(segments, out, out_stride);
}

inline std::vector<float> PrefillWorld::expect(const std::vector<PrefillPart>& parts) {
  write_keys(parts);
  base::ThreadPool pool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  device::Stream stream(pool);
  const int32_t row_elements = shape_.num_q_heads * shape_.head_dim;
  std::vector<float> expected;
  // Head by head, since each head has a table of its own here.
  const int32_t group = shape_.num_q_heads / shape_.num_kv_heads;
  for (const PrefillPart& part : parts) {
    const int32_t rows = part.end - part.begin;
    std::vector<float> q(static_cast<size_t>(rows * row_elements));
    for (size_t i = 0; i < q.size(); ++i) {
      q[i] = to_float(q_[static_cast<size_t>(part.sequence)]
                        [static_cast<size_t>(part.begin * row_elements) + i]);
    }
    const size_t begin = expected.size();
    expected.resize(begin + q.size());
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      std::vector<int32_t> frames;
      for (int32_t page = 0; page * shape_.page_tokens < part.end; ++page) {
        frames.push_back(static_cast<int32_t>(frame(part.sequence, page, head)));
      }
      auto& bytes = in_ring(head) ? ring_pool_ : pool_;
      const KvHead kv_head{.base = reinterpret_cast<std::byte*>(bytes.data()), .kind = kind(head)};
      const AttentionSegment segment{.row_end = rows,
                                     .position_begin = part.begin,
                                     .frames = frames.data(),
                                     .stream_frames = frames.data()};
      AttentionArgs args;
      args.kv = {page_, {&kv_head, 1}};
      args.q = q.data() + head * group * shape_.head_dim;
      args.q_stride = row_elements;
      args.num_q_heads = group;
      args.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
      args.segments = {&segment, 1};
      args.out = expected.data() + begin + head * group * shape_.head_dim;
      args.out_stride = row_elements;
      reference::attention(stream, args);
    }
  }
  return expected;
}

}  // namespace ops::cuda
