// Sequences with random q, k and v in scattered pages, for the tests of attention: what one version
// computes from them is compared with the reference or with itself. Counts allocations.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <vector>

#include "device/cpu.h"
#include "ops/attention.h"
#include "ops/kv_seal.h"
#include "ops/op_table.h"
#include "ops/reference/bfloat16.h"

namespace ops {

// Of the whole program: ops/attention_world.cc replaces operator new.
extern std::atomic<int64_t> num_allocations;

struct Version {
  const char* name;
  device::Isa isa;
  KvWriteFn kv_write;
  AttentionFn attention;
  AttentionWorkspaceFn workspace_bytes;
};

inline std::vector<Version> versions() {
  std::vector<Version> all = {{"avx2", device::Isa::kAvx2, avx2::kv_write, avx2::attention,
                               avx2::attention_workspace_bytes},
                              {"avx512", device::Isa::kAvx512, avx512::kv_write, avx512::attention,
                               avx512::attention_workspace_bytes}};
  std::erase_if(all, [](const Version& version) { return version.isa > device::detect_isa(); });
  return all;
}

struct Shape {
  int32_t num_q_heads, num_kv_heads, head_dim, page_tokens;
  core::DType type = core::DType::kBF16;
  std::vector<core::HeadKind> kinds;  // (Hk); empty: retrieval heads
};

// Rows of one sequence in a call: positions [begin, end) of sequence `sequence`.
struct Part {
  int sequence;
  core::RowKind kind;
  int32_t begin, end;
  std::vector<std::vector<int32_t>> selected;  // (Hk) pages, when a decode row has a selection
};

// Sequences with random q, k and v at every position, and pages at scattered frames that first hold
// garbage.
class World {
 public:
  World(const Shape& shape, const std::vector<int32_t>& lengths, uint32_t seed)
      : shape_(shape), lengths_(lengths) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    int32_t num_frames = 0;
    for (int32_t length : lengths) num_frames += pages(length);
    tables_ = scatter(num_frames, random);
    stream_tables_ = scatter(num_frames, random);
    open_tables_ = scatter(num_frames, random);
    for (int32_t length : lengths) {
      q_.push_back(draw(length, shape.num_q_heads, 1.5f, random));
      k_.push_back(draw(length, shape.num_kv_heads, 1.5f, random));
      v_.push_back(draw(length, shape.num_kv_heads, 1.0f, random));
    }
    page_ = {.type = shape.type,
             .page_tokens = shape.page_tokens,
             .logical_page_tokens = shape.page_tokens,
             .head_dim = shape.head_dim};
    const int64_t column_bytes = page_.page_bytes() * num_frames;
    pool_bytes_.assign(static_cast<size_t>(column_bytes * shape.num_kv_heads),
                       std::byte{0xff});  // NaN of every type
    const int64_t open_bytes = KvLayer{page_, {}}.written_page().page_bytes() * num_frames;
    if (page_.is_quantised()) {
      open_pool_bytes_.assign(static_cast<size_t>(open_bytes * shape.num_kv_heads),
                              std::byte{0xff});
    }
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      heads_.push_back(
          {.base = pool_bytes_.data() + head * column_bytes,
           .kind = shape.kinds.empty() ? core::HeadKind{} : shape.kinds[static_cast<size_t>(head)],
           .open_base = open_pool_bytes_.data() + head * open_bytes});
    }
  }

  struct Inputs {
    std::vector<float> q, k, v;  // rows of the parts
    std::vector<AttentionSegment> segments;
    std::deque<std::vector<int32_t>> tables;  // segments point into them
    AttentionShape limits;
  };

  Inputs inputs(const std::vector<Part>& parts, int num_threads) const {
    Inputs in;
    in.limits = {.num_q_heads = shape_.num_q_heads,
                 .num_kv_heads = shape_.num_kv_heads,
                 .head_dim = shape_.head_dim,
                 .page_tokens = shape_.page_tokens,
                 .num_threads = num_threads};
    int32_t rows = 0;
    for (const Part& part : parts) {
      append(q_, part, shape_.num_q_heads, in.q);
      append(k_, part, shape_.num_kv_heads, in.k);
      append(v_, part, shape_.num_kv_heads, in.v);
      const int32_t count = part.end - part.begin;
      in.segments.push_back({.kind = part.kind,
                             .row_begin = rows,
                             .row_end = rows + count,
                             .position_begin = part.begin,
                             .frames = tables_[static_cast<size_t>(part.sequence)].data()});
      add_tables(part, in);
      rows += count;
      (part.kind == core::RowKind::kPrompt ? in.limits.rows_max : in.limits.decode_rows_max) +=
          count;
      in.limits.context_max = std::max(in.limits.context_max, part.end);
    }
    return in;
  }

  // Writes K and V of the parts; of quantised pages into open ones, and seals those that are full.
  void write(const Version& version, const std::vector<Part>& parts, int num_threads = 2) {
    base::ThreadPool pool(num_threads);
    device::Stream stream(pool);
    const Inputs in = inputs(parts, num_threads);
    const int64_t stride = int64_t{shape_.num_kv_heads} * shape_.head_dim;
    const int64_t allocations = num_allocations.load();
    version.kv_write(stream, {.kv = {page_, heads_},
                              .k = in.k.data(),
                              .v = in.v.data(),
                              .k_stride = stride,
                              .v_stride = stride,
                              .segments = in.segments});
    EXPECT_EQ(num_allocations.load(), allocations);
    if (page_.is_quantised()) seal(stream, parts);
  }

  // Computes the inputs' rows from the pages as they are into `out` with a workspace of exactly the
  // size asked for.
  void attend(const Version& version, const Inputs& in, const float* q, float* out) {
    base::ThreadPool pool(in.limits.num_threads);
    device::Stream stream(pool);
    const auto bytes = static_cast<size_t>(version.workspace_bytes(in.limits));
    constexpr std::byte kGuard{0xa5};
    std::vector<std::byte> memory(bytes + 128, kGuard);
    std::byte* aligned =
        memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    const int64_t stride = int64_t{shape_.num_q_heads} * shape_.head_dim;
    const int64_t allocations = num_allocations.load();
    version.attention(stream,
                      {.kv = {page_, heads_},
                       .q = q,
                       .q_stride = stride,
                       .num_q_heads = shape_.num_q_heads,
                       .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                       .segments = in.segments,
                       .out = out,
                       .out_stride = stride,
                       .workspace = {aligned, bytes}});
    if (version.isa != device::Isa::kReference) {
      EXPECT_EQ(num_allocations.load(), allocations);
    }
    EXPECT_TRUE(std::all_of(aligned + bytes, aligned + bytes + 64,
                            [](std::byte b) { return b == kGuard; }));
  }

  // The rows of the parts from the pages as they are; (T, Hq, D) in the parts' order.
  std::vector<float> attend(const Version& version, const std::vector<Part>& parts,
                            int num_threads) {
    const Inputs in = inputs(parts, num_threads);
    std::vector<float> out(in.q.size(), NAN);
    attend(version, in, in.q.data(), out.data());
    return out;
  }

  // Writes K and V of the parts first.
  std::vector<float> run(const Version& version, const std::vector<Part>& parts, int num_threads) {
    write(version, parts, num_threads);
    return attend(version, parts, num_threads);
  }

  // Numbers that rounding gets wrong: ties, overflow, subnormals, infinities, NaN.
  void make_keys_awkward() {
    const float awkward[] = {
        65519.9f,       65520.0f,       -1e9f, 1e-8f,  6.1e-5f, 5.97e-8f, 1.00390625f, 1.01171875f,
        1.00048828125f, 1.00146484375f, -0.0f, 1e-40f, NAN,     INFINITY, -INFINITY,   3.4e38f};
    for (size_t i = 0; i < k_[0].size(); ++i) {
      if (i % 3 == 0) k_[0][i] = awkward[i / 3 % std::size(awkward)];
    }
  }

  // Makes K and V NaN wherever no row of `parts` sees them; of quantised pages whole pages, open
  // and sealed.
  void spoil_unseen(const std::vector<Part>& parts) {
    if (page_.is_quantised()) return spoil_unseen_pages(parts);
    const int64_t row_bytes = core::row_bytes(page_.type, page_.head_dim);
    for (int32_t s = 0; s < static_cast<int32_t>(lengths_.size()); ++s) {
      for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
        for (int32_t key = 0; key < lengths_[static_cast<size_t>(s)]; ++key) {
          if (std::ranges::any_of(parts, [&](const Part& part) {
                return part.sequence == s && sees(part, key, head);
              })) {
            continue;
          }
          const int32_t token = key % page_.page_tokens;
          std::byte* page = page_of(s, key / page_.page_tokens, head);
          for (int32_t row : {token, token + page_.page_tokens}) {
            std::memset(page + row * row_bytes, 0xff, static_cast<size_t>(row_bytes));
          }
        }
      }
    }
  }

  const std::vector<std::byte>& pool_bytes() const { return pool_bytes_; }
  void spoil() {
    std::ranges::fill(pool_bytes_, std::byte{0xff});
    std::ranges::fill(open_pool_bytes_, std::byte{0xff});
  }

  // Fills the first pages of sequence 0 with what attention reads in those of `other`. REQUIRES:
  // pages of BF16.
  void read_pages(const World& other, int32_t num_pages) {
    std::vector<float> row(static_cast<size_t>(page_.head_dim));
    for (int32_t page = 0; page < num_pages; ++page) {
      for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
        std::byte* out = page_of(0, page, head);
        for (int32_t i = 0; i < 2 * page_.page_tokens; ++i) {
          reference::read_kv_row(other.page_, other.page_of(0, page, head), i >= page_.page_tokens,
                                 i % page_.page_tokens, row.data());
          for (float x : row) {
            const uint16_t bits = reference::float_to_bfloat16(x);
            std::memcpy(out, &bits, sizeof(bits));
            out += sizeof(bits);
          }
        }
      }
    }
  }

  float largest_value() const {
    float largest = 0.0f;
    for (const auto& values : v_) {
      for (float x : values) largest = std::max(largest, std::fabs(x));
    }
    return largest;
  }

 private:
  int32_t pages(int32_t length) const {
    return (length + shape_.page_tokens - 1) / shape_.page_tokens;
  }

  // A table for each sequence, of frames nowhere in order.
  std::vector<std::vector<int32_t>> scatter(int32_t num_frames, std::mt19937& random) const {
    std::vector<int32_t> order(static_cast<size_t>(num_frames));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::vector<int32_t>> tables;
    auto next = order.begin();
    for (int32_t length : lengths_) {
      tables.emplace_back(next, next + pages(length));
      next += pages(length);
    }
    return tables;
  }

  bool is_streaming(int32_t head) const {
    return heads_[static_cast<size_t>(head)].kind.is_streaming();
  }

  std::byte* open_page_of(int32_t sequence, int32_t page, int32_t head) const {
    const int32_t frame = open_tables_[static_cast<size_t>(sequence)][static_cast<size_t>(page)];
    return KvLayer{page_, heads_}.open_frame(frame, head);
  }

  void seal(device::Stream& stream, const std::vector<Part>& parts) {
    std::vector<KvSealItem> items;
    for (const Part& part : parts) {
      for (int32_t page = part.begin / page_.page_tokens; page < part.end / page_.page_tokens;
           ++page) {
        for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
          items.push_back(
              {open_page_of(part.sequence, page, head), page_of(part.sequence, page, head)});
        }
      }
    }
    op_table(device::detect_isa()).kv_seal(stream, {page_, items});  // the same bytes in any
  }

  void spoil_unseen_pages(const std::vector<Part>& parts) {
    const auto spoil_page = [](std::byte* page, int64_t bytes) {
      std::memset(page, 0xff, static_cast<size_t>(bytes));
    };
    const int64_t open_bytes = KvLayer{page_, {}}.written_page().page_bytes();
    for (int32_t s = 0; s < static_cast<int32_t>(lengths_.size()); ++s) {
      for (int32_t page = 0; page < pages(lengths_[static_cast<size_t>(s)]); ++page) {
        for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
          bool open = false, sealed = false;
          for (const Part& part : parts) {
            if (part.sequence != s) continue;
            for (int32_t position = part.begin; position < part.end; ++position) {
              open = open || position / page_.page_tokens == page;
              sealed = sealed || sees_sealed(part, position, page, head);
            }
          }
          if (!open) spoil_page(open_page_of(s, page, head), open_bytes);
          if (!sealed) spoil_page(page_of(s, page, head), page_.page_bytes());
        }
      }
    }
  }

  // Whether the row at `position` of the part sees a key of the page as codes.
  bool sees_sealed(const Part& part, int32_t position, int32_t page, int32_t head) const {
    if (page >= position / page_.page_tokens) return false;
    const Part row{part.sequence, part.kind, position, position + 1, part.selected};
    for (int32_t token = 0; token < page_.page_tokens; ++token) {
      if (sees(row, page * page_.page_tokens + token, head)) return true;
    }
    return false;
  }

  std::byte* page_of(int32_t sequence, int32_t page, int32_t head) const {
    const auto& tables = is_streaming(head) ? stream_tables_ : tables_;
    const int32_t frame = tables[static_cast<size_t>(sequence)][static_cast<size_t>(page)];
    return heads_[static_cast<size_t>(head)].base + frame * page_.page_bytes();
  }

  // Whether a row of the part sees the key.
  bool sees(const Part& part, int32_t key, int32_t head) const {
    if (key >= part.end) return false;
    const core::HeadKind& kind = heads_[static_cast<size_t>(head)].kind;
    if (kind.is_streaming()) return key < kind.sink || part.begin - key < kind.local;
    if (part.selected.empty()) return true;
    const auto& selected = part.selected[static_cast<size_t>(head)];
    return std::ranges::find(selected, key / page_.page_tokens) != selected.end();
  }

  // The tables of a part whose rows are the last segment's: streaming heads' with wild entries for
  // pages that none of its rows sees, and lists of selected pages.
  void add_tables(const Part& part, Inputs& in) const {
    const auto sequence = static_cast<size_t>(part.sequence);
    auto& stream = in.tables.emplace_back(stream_tables_[sequence]);
    for (int32_t page = 0; page < static_cast<int32_t>(stream.size()); ++page) {
      bool seen = false;
      for (int32_t i = 0; i < page_.page_tokens * shape_.num_kv_heads; ++i) {
        const int32_t head = i % shape_.num_kv_heads;
        const int32_t key = page * page_.page_tokens + i / shape_.num_kv_heads;
        seen = seen || (is_streaming(head) && sees(part, key, head));
      }
      if (!seen) stream[static_cast<size_t>(page)] = INT_MIN;
    }
    in.segments.back().stream_frames = stream.data();
    if (page_.is_quantised()) {
      in.segments.back().open_frames =
          open_tables_[sequence].data() + part.begin / page_.page_tokens;
    }
    if (part.selected.empty()) return;
    size_t stride = 0;
    for (const auto& pages : part.selected) stride = std::max(stride, pages.size());
    auto& lists = in.tables.emplace_back(stride * part.selected.size(), INT_MIN);
    auto& counts = in.tables.emplace_back();
    for (size_t head = 0; head < part.selected.size(); ++head) {
      counts.push_back(static_cast<int32_t>(part.selected[head].size()));
      for (size_t i = 0; i < part.selected[head].size(); ++i) {
        lists[head * stride + i] = tables_[sequence][static_cast<size_t>(part.selected[head][i])];
      }
    }
    in.segments.back().frames = lists.data();
    in.segments.back().frames_head_stride = static_cast<int64_t>(stride);
    in.segments.back().num_selected = counts.data();
  }

  std::vector<float> draw(int32_t length, int32_t heads, float scale, std::mt19937& random) const {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> x(static_cast<size_t>(length) *
                         static_cast<size_t>(heads * shape_.head_dim));
    for (float& element : x) element = normal(random);
    return x;
  }

  void append(const std::vector<std::vector<float>>& from, const Part& part, int32_t heads,
              std::vector<float>& to) const {
    const float* rows = from[static_cast<size_t>(part.sequence)].data();
    const int64_t stride = int64_t{heads} * shape_.head_dim;
    to.insert(to.end(), rows + part.begin * stride, rows + part.end * stride);
  }

  Shape shape_;
  std::vector<int32_t> lengths_;
  std::vector<std::vector<int32_t>> tables_, stream_tables_, open_tables_;
  std::vector<std::vector<float>> q_, k_, v_;
  std::vector<std::byte> pool_bytes_, open_pool_bytes_;
  core::PageShape page_;
  std::vector<KvHead> heads_;
};

inline constexpr auto kPrompt = core::RowKind::kPrompt;
inline constexpr auto kDecode = core::RowKind::kDecode;

inline const Version kReference = {"reference", device::Isa::kReference, reference::kv_write,
                                   reference::attention, reference::attention_workspace_bytes};

inline float tolerance(core::DType type) {
  return type == core::DType::kF16 || type == core::DType::kF32 ? 1e-4f : 1e-2f;
}

inline void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                        float bound) {
  ASSERT_EQ(actual.size(), expected.size());
  float worst = 0.0f;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_FALSE(std::isnan(actual[i])) << "element " << i;
    worst = std::max(worst, std::fabs(actual[i] - expected[i]));
  }
  EXPECT_LE(worst, bound);
}

inline bool same_bits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

}  // namespace ops
