// The small ops of a layer against the CPU's references on the same rounded inputs, at odd widths
// and row counts; a row's bits are the same alone and among others; what a step's rows write into
// pages, rings and open pages stands where the tables say and nowhere else.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/thread_pool.h"
#include "device/stream.h"
#include "ops/cuda/gpu_fixture.h"
#include "ops/cuda/row_ops.h"
#include "ops/elementwise.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops::cuda {
namespace {

using Bf16s = std::vector<uint16_t>;

// BF16 as a device pointer.
__nv_bfloat16* bf16(uint16_t* array) {
  return reinterpret_cast<__nv_bfloat16*>(array);
}
float to_float(uint16_t bits) {
  return reference::bfloat16_to_float(bits);
}

// What one rounding to BF16 and `absolute` of arithmetic allow.
void expect_rounded(double expected, uint16_t got, double absolute, const char* what, size_t at) {
  const double allowed = std::fabs(expected) * (0x1p-8 + 1e-5) + absolute;
  const double error = std::fabs(static_cast<double>(to_float(got)) - expected);
  if (!(error <= allowed)) {
    ADD_FAILURE() << what << " [" << at << "]: " << to_float(got) << ", expected " << expected;
  }
}

class RowOpsTest : public GpuTest {
 protected:
  std::vector<float> floats(size_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(count);
    for (float& x : values) x = normal(random_);
    return values;
  }
  Bf16s bf16s(size_t count, float scale = 1.0f) {
    Bf16s values(count);
    for (size_t i = 0; i < count; ++i)
      values[i] = reference::float_to_bfloat16(floats(1, scale)[0]);
    return values;
  }
  static std::vector<float> widened(const Bf16s& values) {
    std::vector<float> floats(values.size());
    for (size_t i = 0; i < values.size(); ++i) floats[i] = to_float(values[i]);
    return floats;
  }

  std::mt19937 random_{7};
  base::ThreadPool pool_{1};
  device::Stream cpu_{pool_};
};

TEST_F(RowOpsTest, EmbedCopiesScaledRows) {
  constexpr size_t kVocab = 37;
  for (size_t width : {size_t{8}, size_t{576}, size_t{4096}, size_t{4104}}) {
    const Bf16s table = bf16s(kVocab * width);
    for (size_t rows : {size_t{0}, size_t{1}, size_t{131}}) {
      std::vector<int32_t> tokens(rows);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % kVocab);
      if (rows > 1) tokens[1] = -1;
      float* hidden = poisoned<float>(rows * width);
      embed(stream(),
            {.table = Weight::of(bf16(upload(table)), kVocab, static_cast<int64_t>(width)),
             .tokens = upload(tokens),
             .rows = static_cast<int64_t>(rows),
             .width = static_cast<int64_t>(width),
             .scale = 1.5f,
             .hidden = hidden});
      const std::vector<float> got = download(hidden, rows * width);
      for (size_t i = 0; i < got.size(); ++i) {
        const int32_t token = tokens[i / width];
        const float expected =
            token < 0 ? 0.0f
                      : 1.5f * to_float(table[static_cast<size_t>(token) * width + i % width]);
        ASSERT_EQ(expected, got[i]) << "width " << width << ", element " << i;
      }
      clear();
    }
  }
}

TEST_F(RowOpsTest, RmsNormIsTheReferenceRounded) {
  for (size_t width : {8, 64, 576, 896, 4096, 4104, 5120, 8192, 16392, 32768}) {
    const size_t source = width > 8192 ? 40 : 700, rows = source + 1;
    const std::vector<float> in = floats(source * width, 3.0f), weight = floats(width);
    std::vector<int32_t> indices(rows);
    for (int32_t& index : indices) index = static_cast<int32_t>(random_() % source);
    uint16_t* out = poisoned<uint16_t>(rows * width);
    NormArgs args{.in = upload(in),
                  .row_indices = upload(indices),
                  .weight = upload(weight),
                  .eps = 1e-5f,
                  .rows = static_cast<int64_t>(rows),
                  .width = static_cast<int64_t>(width),
                  .out = bf16(out)};
    rms_norm(stream(), args);
    const Bf16s got = download(out, rows * width);
    std::vector<float> normed(in.size());
    const auto stride = static_cast<int64_t>(width);
    reference::rms_norm(cpu_, {in.data(), stride, weight.data(), 1e-5f,
                               static_cast<int64_t>(source), 1, stride, normed.data(), stride});
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t from = static_cast<size_t>(indices[i / width]) * width + i % width;
      expect_rounded(static_cast<double>(normed[from]), got[i], 1e-30, "rms_norm", i);
      if (HasFailure()) return;
    }
    // The last row alone, without indices: the same bits.
    args.in += static_cast<int64_t>(indices.back()) * stride;
    args.row_indices = nullptr;
    args.rows = 1;
    rms_norm(stream(), args);
    const Bf16s alone = download(out, width);
    EXPECT_EQ(0, std::memcmp(alone.data(), got.data() + (rows - 1) * width, 2 * width)) << width;
    clear();
  }
}

TEST_F(RowOpsTest, AddRmsNormAddsToTheResidual) {
  for (size_t width : {8, 640, 2560, 4096, 8200, 16392}) {
    for (size_t rows : {size_t{1}, size_t{13}, size_t{600}}) {
      if (rows == 600 && width > 8192) continue;
      const Bf16s y = bf16s(rows * width, 2.0f);
      const std::vector<float> weight = floats(width), hidden = floats(rows * width, 5.0f);
      float* sum = upload(hidden);
      add_rms_norm(stream(), {.y = bf16(upload(y)),
                              .weight = upload(weight),
                              .eps = 1e-6f,
                              .rows = static_cast<int64_t>(rows),
                              .width = static_cast<int64_t>(width),
                              .hidden = sum});
      const std::vector<float> got = download(sum, rows * width), x = widened(y);
      std::vector<float> normed(x.size());
      const auto stride = static_cast<int64_t>(width);
      reference::rms_norm(cpu_, {x.data(), stride, weight.data(), 1e-6f, static_cast<int64_t>(rows),
                                 1, stride, normed.data(), stride});
      for (size_t i = 0; i < got.size(); ++i) {
        const double expected = static_cast<double>(hidden[i]) + static_cast<double>(normed[i]);
        ASSERT_NEAR(
            expected, static_cast<double>(got[i]),
            1e-5 * std::fabs(static_cast<double>(normed[i])) + 1e-6 * std::fabs(expected) + 1e-7)
            << "width " << width << ", element " << i;
      }
      clear();
    }
  }
}

TEST_F(RowOpsTest, GatesAreTheReferencesRounded) {
  for (bool gelu : {false, true}) {
    for (size_t width : {8, 1536, 2056, 4872, 14336}) {
      for (size_t rows : {size_t{0}, size_t{1}, size_t{67}}) {
        Bf16s gate_up = bf16s(rows * 2 * width, 4.0f);
        for (size_t i = 0; i < gate_up.size(); i += 97)  // far out in both tails
          gate_up[i] = reference::float_to_bfloat16(floats(1, 60.0f)[0]);
        const std::vector<float> x = widened(gate_up);
        std::vector<float> expected(rows * width);
        const auto stride = static_cast<int64_t>(width);
        const ops::GatedArgs reference_args{
            x.data(), x.data() + width, 2 * stride, static_cast<int64_t>(rows),
            stride,   expected.data(),  stride};
        (gelu ? reference::geglu : reference::swiglu)(cpu_, reference_args);
        uint16_t* in = upload(gate_up);
        uint16_t* out = rows == 1 ? in : poisoned<uint16_t>(rows * width);  // one row: in place
        gated(stream(), {.gate_up = bf16(in),
                         .rows = static_cast<int64_t>(rows),
                         .width = stride,
                         .gelu = gelu,
                         .out = bf16(out)});
        const Bf16s got = download(out, rows * width);
        for (size_t i = 0; i < got.size(); ++i) {
          const float up = x[(i / width) * 2 * width + width + i % width];
          expect_rounded(static_cast<double>(expected[i]), got[i],
                         std::fabs(static_cast<double>(up)) * (gelu ? 1e-15 : 1e-30),
                         gelu ? "geglu" : "swiglu", i);
          if (HasFailure()) return;
        }
        clear();
      }
    }
  }
}

// --- RoPE and the write of K and V ---------------------------------------------------------------

struct Shape {
  int32_t q_heads, kv_heads, head_dim, page_tokens;
};

// A layer's memory: two sequences and a padding row; head 1 (where there is one) lives in rings.
struct Layer {
  Shape shape;
  core::DType type;
  bool norms, table_per_head;
  KvLayer kv;
  std::vector<std::vector<int32_t>> frames;  // of each sequence's table
  std::vector<int32_t> columns, ring_columns, open_rows;
  int64_t pool_bytes = 0, ring_bytes = 0, open_bytes = 0;
};

constexpr int32_t kPages = 9, kColumns = 5, kRows = 24, kSlots = 3;

class RopeTest : public RowOpsTest {
 protected:
  Layer make_layer(const Shape& shape, core::DType type, bool norms, bool table_per_head) {
    Layer layer{.shape = shape, .type = type, .norms = norms, .table_per_head = table_per_head};
    layer.kv.pool.page = {type, shape.page_tokens, shape.page_tokens, shape.head_dim};
    KvPool& pool = layer.kv.pool;
    pool.page_bytes = pool.page.page_bytes();
    pool.num_columns = kColumns + shape.kv_heads;
    pool.num_frames = int64_t{kRows} * pool.num_columns;
    layer.pool_bytes = pool.num_frames * pool.page_bytes;
    layer.kv.rings = {.num_columns = 4, .sink_pages = 1, .ring_pages = 3};
    layer.ring_bytes = int64_t{kSlots} * 4 * 4 * pool.page_bytes;
    layer.kv.num_kv_heads = shape.kv_heads;
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      layer.columns.push_back(head == 1 ? -1 : kColumns + head);
      layer.ring_columns.push_back(head == 1 ? 2 : -1);
    }
    layer.kv.open = {.page_bytes = 4ll * shape.page_tokens * shape.head_dim,
                     .num_columns = 2 * shape.kv_heads};
    layer.kv.open_column = shape.kv_heads;
    layer.open_bytes = int64_t{2 * kPages} * layer.kv.open.num_columns * layer.kv.open.page_bytes;
    std::vector<int32_t> rows(kRows);
    for (int32_t i = 0; i < kRows; ++i) rows[static_cast<size_t>(i)] = i;
    std::shuffle(rows.begin(), rows.end(), random_);
    for (int32_t s = 0; s < 2; ++s) {
      std::vector<int32_t> frames;
      if (table_per_head) {
        for (int32_t i = 0; i < kPages * shape.kv_heads; ++i)
          frames.push_back(rows[static_cast<size_t>(s * kPages + i % kPages)] * pool.num_columns +
                           i / kPages);
      } else {
        frames.assign(rows.begin() + s * kPages, rows.begin() + (s + 1) * kPages);
      }
      layer.frames.push_back(frames);
    }
    for (int32_t i = 0; i < 2 * kPages; ++i) layer.open_rows.push_back((i * 5 + 3) % (2 * kPages));
    return layer;
  }

  // Where row `position` of K stands: an offset in the pool, the rings or the open pages.
  static int64_t place(const Layer& layer, int32_t sequence, int32_t position, int32_t head,
                       int* memory) {
    const int32_t page = position / layer.shape.page_tokens;
    const KvPool& pool = layer.kv.pool;
    const bool opens = pool.page.is_quantised();
    const int64_t row = int64_t{position % layer.shape.page_tokens} * layer.shape.head_dim *
                        (layer.type == core::DType::kF32 ? 4 : 2);
    if (opens) {
      *memory = 2;
      const int64_t open = layer.open_rows[static_cast<size_t>(sequence * kPages + page)];
      return (open * layer.kv.open.num_columns + layer.kv.open_column + head) *
                 layer.kv.open.page_bytes +
             row;
    }
    if (head == 1) {
      *memory = 1;
      const int64_t frame = page < 1 ? page : 1 + (page - 1) % 3;
      return ((int64_t{sequence + 1} * 4 + frame) * 4 + 2) * pool.page_bytes + row;
    }
    *memory = 0;
    const std::vector<int32_t>& frames = layer.frames[static_cast<size_t>(sequence)];
    const int64_t frame = layer.table_per_head
                              ? frames[static_cast<size_t>(head * kPages + page)]
                              : int64_t{frames[static_cast<size_t>(page)]} * pool.num_columns +
                                    layer.columns[static_cast<size_t>(head)];
    return frame * pool.page_bytes + row;
  }

  void check(const Shape& shape, core::DType type, bool norms, bool table_per_head);
  void run(Layer& layer, const std::vector<int32_t>& positions, const std::vector<int32_t>& tables);
  void compare(const Layer& layer, const std::vector<int32_t>& positions,
               const std::vector<int32_t>& tables);

  Bf16s qkv_, got_qkv_;
  std::vector<float> q_norm_, k_norm_, frequencies_;
  std::vector<std::byte> memories_[3];
};

constexpr float kMagnitude = 1.25f;

void RopeTest::run(Layer& layer, const std::vector<int32_t>& positions,
                   const std::vector<int32_t>& tables) {
  std::byte* pool = poisoned<std::byte>(static_cast<size_t>(layer.pool_bytes));
  std::byte* rings = poisoned<std::byte>(static_cast<size_t>(layer.ring_bytes));
  std::byte* open = poisoned<std::byte>(static_cast<size_t>(layer.open_bytes));
  layer.kv.pool.base = pool, layer.kv.rings.base = rings, layer.kv.open.base = open;
  layer.kv.columns = upload(layer.columns);
  layer.kv.ring_columns = upload(layer.ring_columns);
  const int32_t* open_rows = upload(layer.open_rows);
  std::vector<PageTable> page_tables;
  for (int32_t s = 0; s < 2; ++s) {
    page_tables.push_back({.frames = upload(layer.frames[static_cast<size_t>(s)]),
                           .head_stride = layer.table_per_head ? kPages : 0,
                           .slot = s + 1,
                           .open_rows = open_rows + s * kPages});
  }
  uint16_t* qkv = upload(qkv_);
  rope_and_write(stream(), {.kv = layer.kv,
                            .rows = {.num_rows = static_cast<int32_t>(positions.size()),
                                     .positions = upload(positions),
                                     .row_tables = upload(tables),
                                     .tables = upload(page_tables)},
                            .qkv = bf16(qkv),
                            .num_q_heads = layer.shape.q_heads,
                            .head_dim = layer.shape.head_dim,
                            .q_norm = layer.norms ? upload(q_norm_) : nullptr,
                            .k_norm = layer.norms ? upload(k_norm_) : nullptr,
                            .eps = 1e-6f,
                            .inverse_frequencies = upload(frequencies_),
                            .magnitude = kMagnitude});
  got_qkv_ = download(qkv, qkv_.size());
  memories_[0] = download(pool, static_cast<size_t>(layer.pool_bytes));
  memories_[1] = download(rings, static_cast<size_t>(layer.ring_bytes));
  memories_[2] = download(open, static_cast<size_t>(layer.open_bytes));
  clear();
}

void RopeTest::compare(const Layer& layer, const std::vector<int32_t>& positions,
                       const std::vector<int32_t>& tables) {
  const Shape& s = layer.shape;
  const auto dim = static_cast<size_t>(s.head_dim);
  const int32_t heads = s.q_heads + 2 * s.kv_heads;
  std::vector<std::byte> expected_free[3];
  for (int m = 0; m < 3; ++m) expected_free[m].assign(memories_[m].size(), std::byte{0xff});
  const bool wide = layer.type == core::DType::kF32;
  for (size_t row = 0; row < positions.size(); ++row) {
    for (int32_t head = 0; head < heads; ++head) {
      const size_t at = (row * static_cast<size_t>(heads) + static_cast<size_t>(head)) * dim;
      const bool is_q = head < s.q_heads, is_v = head >= s.q_heads + s.kv_heads;
      if (tables[row] < 0 || !is_q) {
        ASSERT_EQ(0, std::memcmp(&got_qkv_[at], &qkv_[at], 2 * dim)) << "row " << row;
        if (tables[row] < 0) continue;
      }
      std::vector<float> x = widened({qkv_.begin() + static_cast<std::ptrdiff_t>(at),
                                      qkv_.begin() + static_cast<std::ptrdiff_t>(at + dim)});
      if (!is_v && layer.norms) {
        const std::vector<float>& weight = is_q ? q_norm_ : k_norm_;
        reference::rms_norm(cpu_, {x.data(), s.head_dim, weight.data(), 1e-6f, 1, 1, s.head_dim,
                                   x.data(), s.head_dim});
      }
      float max = 0.0f;
      for (float value : x) max = std::max(max, std::fabs(value));
      if (!is_v) {
        reference::rope(cpu_, {x.data(), s.head_dim, 1, 1, s.head_dim,
                               std::span(&positions[row], 1), frequencies_, kMagnitude});
      }
      const double absolute = is_v ? 0.0 : 2e-5 * static_cast<double>(max);
      if (is_q) {
        for (size_t c = 0; c < dim; ++c)
          expect_rounded(static_cast<double>(x[c]), got_qkv_[at + c], absolute, "q", at + c);
        continue;
      }
      int memory = 0;
      int64_t offset =
          place(layer, tables[row], positions[row], (head - s.q_heads) % s.kv_heads, &memory);
      if (is_v) offset += int64_t{s.page_tokens} * s.head_dim * (wide ? 4 : 2);
      const std::byte* stored = memories_[memory].data() + offset;
      std::memcpy(expected_free[memory].data() + offset, stored, dim * (wide ? 4 : 2));
      std::vector<float> got(dim);
      const core::DType stored_type =
          layer.kv.pool.page.is_quantised() ? core::DType::kBF16 : layer.type;
      reference::dequantize_row(stored_type, stored, s.head_dim, got.data());
      const double rounding = wide ? 1e-6 : layer.type == core::DType::kF16 ? 0x1p-11 : 0x1p-8;
      for (size_t c = 0; c < dim; ++c) {
        const double expected = static_cast<double>(x[c]);
        ASSERT_NEAR(expected, static_cast<double>(got[c]),
                    std::fabs(expected) * rounding + absolute + 1e-7)
            << (is_v ? "v" : "k") << " row " << row << ", head " << head << ", channel " << c;
      }
    }
  }
  for (int m = 0; m < 3; ++m)
    EXPECT_TRUE(expected_free[m] == memories_[m]) << "bytes beside the rows changed in " << m;
}

void RopeTest::check(const Shape& shape, core::DType type, bool norms, bool table_per_head) {
  SCOPED_TRACE(testing::Message() << shape.q_heads << "/" << shape.kv_heads << " heads of "
                                  << shape.head_dim << ", type " << static_cast<int>(type)
                                  << ", norms " << norms << ", per head " << table_per_head);
  Layer layer = make_layer(shape, type, norms, table_per_head);
  // A run over page borders, and single rows of another sequence; one row is padding.
  std::vector<int32_t> positions, tables;
  for (int32_t p = shape.page_tokens - 2; p < shape.page_tokens * 2 + 3; ++p)
    positions.push_back(p), tables.push_back(0);
  for (int32_t p : {0, 5 * shape.page_tokens, kPages * shape.page_tokens - 1})
    positions.push_back(p), tables.push_back(1);
  positions.push_back(7), tables.push_back(-1);
  const auto width = static_cast<size_t>((shape.q_heads + 2 * shape.kv_heads) * shape.head_dim);
  qkv_ = bf16s(positions.size() * width);
  q_norm_ = floats(static_cast<size_t>(shape.head_dim));
  k_norm_ = floats(static_cast<size_t>(shape.head_dim));
  frequencies_.clear();
  for (int32_t c = 0; c < shape.head_dim / 2; ++c)
    frequencies_.push_back(
        std::pow(10000.0f, -2.0f * static_cast<float>(c) / static_cast<float>(shape.head_dim)));
  run(layer, positions, tables);
  compare(layer, positions, tables);
}

TEST_F(RopeTest, RotatesAndWritesEveryShape) {
  for (const Shape& shape : {Shape{32, 8, 128, 32}, Shape{9, 3, 64, 16}, Shape{5, 1, 80, 16},
                             Shape{8, 4, 256, 64}, Shape{2, 2, 16, 16}, Shape{64, 8, 128, 32}}) {
    for (bool norms : {false, true}) {
      check(shape, core::DType::kBF16, norms, false);
      check(shape, core::DType::kBF16, norms, true);
    }
    check(shape, core::DType::kF16, true, false);
    check(shape, core::DType::kF32, false, false);
    check(shape, core::DType::kI8, true, false);
    if (HasFailure()) return;
  }
}

TEST_F(RopeTest, AnglesOfAMillionTokensLoseNothing) {
  const Shape shape{4, 1, 128, 16};
  Layer layer = make_layer(shape, core::DType::kF32, false, false);
  // One row a page table whose page 0 is everything: the frames of far pages are never looked up,
  // so tables hold only what the row needs. Each row has a table of its own.
  std::vector<int32_t> positions = {0, 1, 4095, 131071, 524287, 999983, 1000000};
  frequencies_.clear();
  for (int32_t c = 0; c < 64; ++c)
    frequencies_.push_back(std::pow(500000.0f, -static_cast<float>(c) / 64.0f));
  const auto width = size_t{6} * 128;
  qkv_ = bf16s(positions.size() * width);
  std::vector<int32_t> frames(62501, 0);
  for (size_t i = 0; i < positions.size(); ++i)
    frames[static_cast<size_t>(positions[i] / 16)] = static_cast<int32_t>(i);
  std::byte* pool = poisoned<std::byte>(static_cast<size_t>(layer.pool_bytes));
  layer.kv.pool.base = pool;
  layer.kv.columns = upload(layer.columns);
  layer.kv.ring_columns = upload(layer.ring_columns);
  const std::vector<PageTable> tables = {{.frames = upload(frames)}};
  uint16_t* qkv = upload(qkv_);
  rope_and_write(stream(),
                 {.kv = layer.kv,
                  .rows = {.num_rows = static_cast<int32_t>(positions.size()),
                           .positions = upload(positions),
                           .row_tables = upload(std::vector<int32_t>(positions.size(), 0)),
                           .tables = upload(tables)},
                  .qkv = bf16(qkv),
                  .num_q_heads = 4,
                  .head_dim = 128,
                  .inverse_frequencies = upload(frequencies_)});
  memories_[0] = download(pool, static_cast<size_t>(layer.pool_bytes));
  for (size_t row = 0; row < positions.size(); ++row) {
    const size_t at = row * width + 4 * 128;
    std::vector<float> x = widened({qkv_.begin() + static_cast<std::ptrdiff_t>(at),
                                    qkv_.begin() + static_cast<std::ptrdiff_t>(at + 128)});
    reference::rope(cpu_, {x.data(), 128, 1, 1, 128, std::span(&positions[row], 1), frequencies_});
    const int64_t frame =
        int64_t{frames[static_cast<size_t>(positions[row] / 16)]} * layer.kv.pool.num_columns +
        layer.columns[0];
    std::vector<float> got(128);
    std::memcpy(got.data(),
                memories_[0].data() + frame * layer.kv.pool.page_bytes + positions[row] % 16 * 512,
                512);
    for (size_t c = 0; c < 128; ++c)
      ASSERT_NEAR(x[c], got[c], 3e-6) << "position " << positions[row] << ", channel " << c;
  }
}

}  // namespace
}  // namespace ops::cuda
