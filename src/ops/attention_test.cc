// Every version of attention and of the KV write against the reference, at the sizes where paging
// goes wrong, and the promise that a row's bits depend on its own sequence alone: computed in other
// chunks, batches and numbers of threads, they are equal. Allocations are counted.
#include "ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <random>
#include <vector>

#include "device/cpu.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}

// Not inlined: the compiler would see new's memory freed by free().
[[gnu::noinline]] void* operator new(size_t bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace ops {
namespace {

struct Version {
  const char* name;
  device::Isa isa;
  KvWriteFn kv_write;
  AttentionFn attention;
  AttentionWorkspaceFn workspace_bytes;
};

std::vector<Version> versions() {
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
};

// Rows of one sequence in a call: positions [begin, end) of sequence `sequence`.
struct Part {
  int sequence;
  core::RowKind kind;
  int32_t begin, end;
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
    std::vector<int32_t> order(static_cast<size_t>(num_frames));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    size_t next = 0;
    for (int32_t length : lengths) {
      auto& table = tables_.emplace_back();
      for (int32_t page = 0; page < pages(length); ++page) table.push_back(order[next++]);
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
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      heads_.push_back({.base = pool_bytes_.data() + head * column_bytes});
    }
  }

  struct Inputs {
    std::vector<float> q, k, v;  // rows of the parts
    std::vector<AttentionSegment> segments;
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
      rows += count;
      (part.kind == core::RowKind::kPrompt ? in.limits.rows_max : in.limits.decode_rows_max) +=
          count;
      in.limits.context_max = std::max(in.limits.context_max, part.end);
    }
    return in;
  }

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

  // Writes K and V of the parts, then computes their rows; (T, Hq, D) in the parts' order.
  std::vector<float> run(const Version& version, const std::vector<Part>& parts, int num_threads) {
    write(version, parts, num_threads);
    const Inputs in = inputs(parts, num_threads);
    std::vector<float> out(in.q.size(), NAN);
    attend(version, in, in.q.data(), out.data());
    return out;
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

  const std::vector<std::byte>& pool_bytes() const { return pool_bytes_; }
  void spoil() { std::fill(pool_bytes_.begin(), pool_bytes_.end(), std::byte{0xff}); }

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
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::vector<float>> q_, k_, v_;
  std::vector<std::byte> pool_bytes_;
  core::PageShape page_;
  std::vector<KvHead> heads_;
};

constexpr auto kPrompt = core::RowKind::kPrompt;
constexpr auto kDecode = core::RowKind::kDecode;

const Version kReference = {"reference", device::Isa::kReference, reference::kv_write,
                            reference::attention, reference::attention_workspace_bytes};

float tolerance(core::DType type) {
  return type == core::DType::kBF16 ? 1e-2f : 1e-4f;
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                 float bound) {
  ASSERT_EQ(actual.size(), expected.size());
  float worst = 0.0f;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_FALSE(std::isnan(actual[i])) << "element " << i;
    worst = std::max(worst, std::fabs(actual[i] - expected[i]));
  }
  EXPECT_LE(worst, bound);
}

bool same_bits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

TEST(Attention, AgreesWithReference) {
  const std::vector<Shape> shapes = {{9, 3, 64, 32},  {8, 2, 128, 32}, {4, 4, 80, 16},
                                     {16, 1, 96, 64}, {2, 1, 256, 32}, {3, 3, 16, 16},
                                     {6, 3, 112, 64}, {5, 1, 48, 16}};
  for (Shape shape : shapes) {
    for (auto type : {core::DType::kBF16, core::DType::kF16, core::DType::kF32}) {
      shape.type = type;
      const int32_t page = shape.page_tokens;
      // Each sequence writes all but its last rows first, then computes those rows.
      const std::vector<int32_t> lengths = {1, page - 1, page, page + 1, 2 * page + 7, 131, 70};
      std::vector<Part> before, parts;
      for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
        const int32_t length = lengths[static_cast<size_t>(s)];
        const int32_t begin = s == 6 ? 0 : std::max(0, length - 1 - s);
        if (begin > 0) before.push_back({s, kPrompt, 0, begin});
        parts.push_back({s, s % 3 == 1 ? kDecode : kPrompt, begin, length});
      }
      World world(shape, lengths, 7);
      for (const Version& version : versions()) {
        SCOPED_TRACE(testing::Message()
                     << version.name << " Hq " << shape.num_q_heads << " D " << shape.head_dim
                     << " P " << page << " type " << core::info(type).name);
        world.spoil();
        if (!before.empty()) world.write(kReference, before);
        const auto expected = world.run(kReference, parts, 2);
        const auto actual = world.run(version, parts, 2);
        expect_near(actual, expected, tolerance(type) * world.largest_value());
      }
    }
  }
}

TEST(Attention, LongContextAgreesWithReference) {
  for (Shape shape : {Shape{4, 1, 64, 32}, Shape{8, 2, 128, 16}, Shape{2, 2, 96, 64}}) {
    World world(shape, {1000, 2311}, 11);
    for (const Version& version : versions()) {
      SCOPED_TRACE(version.name);
      world.spoil();
      world.write(kReference, {{0, kPrompt, 0, 990}, {1, kPrompt, 0, 2304}});
      const std::vector<Part> parts = {{1, kDecode, 2304, 2311}, {0, kPrompt, 990, 1000}};
      const auto expected = world.run(kReference, parts, 2);
      expect_near(world.run(version, parts, 2), expected,
                  tolerance(shape.type) * world.largest_value());
    }
  }
}

TEST(Attention, RowsKeepTheirBitsInAnyChunkBatchAndTeam) {
  for (Shape shape :
       {Shape{9, 3, 64, 32}, Shape{4, 1, 128, 16}, Shape{2, 2, 80, 64, core::DType::kF32}}) {
    const int32_t length = 333;
    const size_t row = static_cast<size_t>(shape.num_q_heads * shape.head_dim);
    World world(shape, {length, 150}, 23);
    const auto expected = world.run(kReference, {{0, kPrompt, 0, length}}, 2);
    for (const Version& version : versions()) {
      SCOPED_TRACE(version.name);
      world.spoil();
      const auto whole = world.run(version, {{0, kPrompt, 0, length}}, 1);
      expect_near(whole, expected, tolerance(shape.type) * world.largest_value());
      for (int threads : {2, 3}) {
        const auto again = world.run(version, {{0, kPrompt, 0, length}}, threads);
        EXPECT_TRUE(same_bits(whole.data(), again.data(), whole.size())) << threads << " threads";
      }
      world.spoil();
      std::mt19937 random(5);
      for (int32_t begin = 0; begin < length;) {
        const int32_t end = std::min(length, begin + 1 + static_cast<int32_t>(random() % 70));
        const auto chunk = world.run(version, {{1, kPrompt, 0, 150}, {0, kPrompt, begin, end}}, 2);
        EXPECT_TRUE(same_bits(chunk.data() + 150 * row,
                              whole.data() + static_cast<size_t>(begin) * row,
                              static_cast<size_t>(end - begin) * row))
            << "rows " << begin << " to " << end;
        begin = end;
      }
    }
  }
}

TEST(Attention, DecodeRowsKeepTheirBitsInAnyBatchAndTeam) {
  const Shape shape{8, 2, 64, 16};
  World world(shape, {700, 33, 1}, 29);
  const size_t row = static_cast<size_t>(shape.num_q_heads * shape.head_dim);
  for (const Version& version : versions()) {
    SCOPED_TRACE(version.name);
    world.run(version, {{0, kPrompt, 0, 699}, {1, kPrompt, 0, 32}}, 2);
    const auto alone = world.run(version, {{0, kDecode, 699, 700}}, 1);
    for (int threads : {1, 2, 3}) {
      const auto batch = world.run(
          version,
          {{2, kDecode, 0, 1}, {0, kDecode, 690, 700}, {1, kDecode, 32, 33}, {1, kPrompt, 3, 20}},
          threads);
      EXPECT_TRUE(same_bits(alone.data(), batch.data() + 10 * row, row)) << threads << " threads";
    }
  }
}

TEST(Attention, OutMayAliasQueriesAndOtherRowsAreLeftAlone) {
  const Shape shape{6, 2, 32, 16};
  const size_t row = 6 * 32;
  World world(shape, {600}, 31);
  for (const Version& version : versions()) {
    world.run(version, {{0, kPrompt, 0, 600}}, 2);
    for (auto kind : {kPrompt, kDecode}) {
      World::Inputs in = world.inputs({{0, kind, 540, 600}}, 2);
      in.segments[0].row_end -= 4;
      std::vector<float> separate(in.q.size(), -1.0f), same = in.q;
      world.attend(version, in, in.q.data(), separate.data());
      world.attend(version, in, same.data(), same.data());
      EXPECT_TRUE(same_bits(same.data(), separate.data(), 56 * row));
      EXPECT_TRUE(same_bits(same.data() + 56 * row, in.q.data() + 56 * row, 4 * row));
      EXPECT_EQ(separate[56 * row], -1.0f);
    }
  }
}

TEST(KvWrite, RoundsLikeTheReference) {
  for (auto type : {core::DType::kBF16, core::DType::kF16, core::DType::kF32}) {
    World world({3, 3, 48, 16, type}, {100}, 37);
    world.make_keys_awkward();
    for (const Version& version : versions()) {
      world.spoil();
      world.write(kReference, {{0, kPrompt, 0, 37}, {0, kDecode, 99, 100}});
      const auto expected = world.pool_bytes();
      world.spoil();
      world.write(version, {{0, kPrompt, 0, 37}, {0, kDecode, 99, 100}});
      EXPECT_EQ(world.pool_bytes(), expected) << version.name << " " << core::info(type).name;
    }
  }
}

TEST(Attention, WorkspaceDoesNotGrowWithDecodeRowsTimesContext) {
  const AttentionShape shape{.num_q_heads = 8,
                             .num_kv_heads = 2,
                             .head_dim = 128,
                             .page_tokens = 32,
                             .rows_max = 512,
                             .decode_rows_max = 256,
                             .context_max = 128 * 1024,
                             .num_threads = 2};
  for (const Version& version : versions()) EXPECT_LT(version.workspace_bytes(shape), 4 << 20);
}

}  // namespace
}  // namespace ops
