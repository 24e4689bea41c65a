// Sequences with random q, k and v in scattered pages, for the tests of attention: what one version
// computes from them is compared with the reference or with itself. Counts allocations.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "device/cpu.h"
#include "ops/attention.h"
#include "ops/kv_seal.h"

namespace ops {

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
           .open_base =
               page_.is_quantised() ? open_pool_bytes_.data() + head * open_bytes : nullptr});
    }
  }

  struct Inputs {
    std::vector<float> q, k, v;  // rows of the parts
    std::vector<AttentionSegment> segments;
    std::deque<std::vector<int32_t>> tables;  // segments point into them
    AttentionShape limits;
  };

  Inputs inputs(const std::vector<Part>& parts, int num_threads) const;

  // Writes K and V of the parts; of quantised pages into open ones, and seals those that are full.
  void write(const Version& version, const std::vector<Part>& parts, int num_threads = 2);

  // Computes the inputs' rows from the pages as they are into `out` with a workspace of exactly the
  // size asked for.
  void attend(const Version& version, const Inputs& in, const float* q, float* out);

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
  void make_keys_awkward();

  // Makes K and V NaN wherever no row of `parts` sees them; of quantised pages whole pages, open
  // and sealed.
  void spoil_unseen(const std::vector<Part>& parts);

  const std::vector<std::byte>& pool_bytes() const { return pool_bytes_; }
  void spoil() {
    std::ranges::fill(pool_bytes_, std::byte{0xff});
    std::ranges::fill(open_pool_bytes_, std::byte{0xff});
  }

  // Fills the first pages of sequence 0 with what attention reads in those of `other`. REQUIRES:
  // pages of BF16.
  void read_pages(const World& other, int32_t num_pages);

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
  std::vector<std::vector<int32_t>> scatter(int32_t num_frames, std::mt19937& random) const;

  bool is_streaming(int32_t head) const {
    return heads_[static_cast<size_t>(head)].kind.is_streaming();
  }

  std::byte* open_page_of(int32_t sequence, int32_t page, int32_t head) const {
    const int32_t frame = open_tables_[static_cast<size_t>(sequence)][static_cast<size_t>(page)];
    return KvLayer{page_, heads_}.open_frame(frame, head);
  }

  void seal(device::Stream& stream, const std::vector<Part>& parts);

  void spoil_unseen_pages(const std::vector<Part>& parts);

  // Whether the row at `position` of the part sees a key of the page as codes.
  bool sees_sealed(const Part& part, int32_t position, int32_t page, int32_t head) const;

  std::byte* page_of(int32_t sequence, int32_t page, int32_t head) const {
    const auto& tables = is_streaming(head) ? stream_tables_ : tables_;
    const int32_t frame = tables[static_cast<size_t>(sequence)][static_cast<size_t>(page)];
    return heads_[static_cast<size_t>(head)].base + frame * page_.page_bytes();
  }

  // Whether a row of the part sees the key.
  bool sees(const Part& part, int32_t key, int32_t head) const;

  // The tables of a part whose rows are the last segment's: streaming heads' with wild entries for
  // pages that none of its rows sees, and lists of selected pages.
  void add_tables(const Part& part, Inputs& in) const;

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
