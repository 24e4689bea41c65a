// Every back end's linear, pack and embed against the reference on random weights of all types at
// odd sizes, and the promise that a row's bits depend on the row and the matrix alone.
#include "ops/linear.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/op_table.h"
#include "ops/reference/dequantize.h"

namespace ops {
namespace {

using core::DType;
using device::Isa;

constexpr int64_t kRowCounts[] = {1, 2, 3, 7, 8, 13, 16, 33, 100};
constexpr int64_t kMaxRows = 100;

struct Shape {
  int64_t outputs, cols;
};

// Odd sizes that a type allows: below and above a panel, a tile, a chunk of columns.
std::vector<Shape> shapes_of(DType type) {
  switch (core::info(type).block_elements) {
    case 1:
      return {{1, 1}, {17, 7}, {50, 130}, {131, 1027}};
    case 32:
      return {{1, 32}, {17, 96}, {50, 576}, {131, 1056}};
    default:
      return {{1, 256}, {50, 768}, {131, 1280}};
  }
}

// A half of either sign between 2^-9 and 2^-4.
uint16_t random_half(std::mt19937& rng) {
  return static_cast<uint16_t>((rng() & 0x83ff) | (6 + rng() % 5) << 10);
}

// Random blocks: any bits where integers stand, moderate numbers where floats stand.
std::vector<std::byte> random_weight(DType type, int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 rng(seed);
  const core::DTypeInfo& info = core::info(type);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * core::row_bytes(type, cols)));
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(info.block_bytes)) {
    const auto put = [&](size_t offset, auto value) {
      std::memcpy(&bytes[at + offset], &value, sizeof value);
    };
    switch (type) {
      case DType::kF32:
        put(0, std::normal_distribution<float>()(rng));
        break;
      case DType::kBF16: {
        const float value = std::normal_distribution<float>()(rng);
        put(0, static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
        break;
      }
      case DType::kQ6_K:
        put(208, random_half(rng));
        break;
      case DType::kQ4_1:
      case DType::kQ5_1:
      case DType::kQ4_K:
      case DType::kQ5_K:
        put(2, random_half(rng));
        [[fallthrough]];
      default:
        put(0, random_half(rng));
    }
  }
  return bytes;
}

// (rows, cols) normal numbers, a few of them much larger, rows `stride` apart.
std::vector<float> random_rows(int64_t rows, int64_t stride, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows * stride));
  for (float& v : x) v = normal(rng) * (rng() % 64 == 0 ? 8.0f : 1.0f);
  return x;
}

WeightView view(DType type, int64_t rows, int64_t cols, const std::vector<std::byte>& bytes) {
  WeightView weight;
  weight.type = type;
  weight.rows = rows;
  weight.cols = cols;
  weight.data = bytes.data();
  return weight;
}

// A back end with a pool of its own.
struct Backend {
  explicit Backend(Isa isa, int threads = 2) : ops(op_table(isa)), pool(threads), stream(pool) {}

  PackedMatrix pack(const WeightView& weight) { return ops.pack(stream, weight).value(); }

  void linear(const float* x, int64_t x_stride, int64_t rows,
              std::span<const LinearOutput> outputs) {
    const int64_t bytes = ops.linear_workspace_bytes(rows, outputs[0].weight->cols);
    device::Buffer workspace = device::Buffer::allocate(bytes, "workspace").value();
    LinearArgs args;
    args.x = x;
    args.x_stride = x_stride;
    args.rows = rows;
    args.outputs = outputs;
    args.workspace = {workspace.data(), static_cast<size_t>(workspace.size())};
    ops.linear(stream, args);
  }

  // Dense (rows, N) result of one matrix.
  std::vector<float> apply(const PackedMatrix& weight, const float* x, int64_t rows) {
    std::vector<float> y(static_cast<size_t>(rows * weight.rows));
    LinearOutput output;
    output.weight = &weight;
    output.y = y.data();
    output.y_stride = weight.rows;
    linear(x, weight.cols, rows, {&output, 1});
    return y;
  }

  const OpTable& ops;
  base::ThreadPool pool;
  device::Stream stream;
};

// What the contract's tolerance is relative to, for every (row, output): sum_k |x_k w_k|, where for
// quantised weights x_k counts as the largest of its 32.
std::vector<double> magnitudes(const WeightView& w, const std::vector<float>& x, int64_t rows) {
  std::vector<double> sums(static_cast<size_t>(rows * w.rows));
  std::vector<float> row(static_cast<size_t>(w.cols));
  std::vector<float> bound = x;
  for (size_t b = 0; core::info(w.type).block_elements > 1 && b < bound.size(); b += 32) {
    float largest = 0;
    for (size_t k = b; k < b + 32; ++k) largest = std::max(largest, std::fabs(x[k]));
    std::fill_n(bound.begin() + static_cast<std::ptrdiff_t>(b), 32, largest);
  }
  for (int64_t n = 0; n < w.rows; ++n) {
    reference::dequantize_row(w.type, w.data + n * core::row_bytes(w.type, w.cols), w.cols,
                              row.data());
    for (int64_t m = 0; m < rows; ++m) {
      double& sum = sums[static_cast<size_t>(m * w.rows + n)];
      for (int64_t k = 0; k < w.cols; ++k) {
        const double value = bound[static_cast<size_t>(m * w.cols + k)];
        sum += std::fabs(value * double{row[static_cast<size_t>(k)]});
      }
    }
  }
  return sums;
}

double tolerance(Isa isa, DType type) {
  if (type == DType::kBF16) return isa == Isa::kAvx512 ? 5e-3 : 1e-5;
  return core::info(type).block_elements == 1 ? 1e-5 : 2e-5;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// The instruction sets of this processor, at least the reference: what it lacks is no test of its
// own, so nothing is skipped on an older one.
std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::kReference, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= device::detect_isa()) all.push_back(isa);
  }
  return all;
}

using Case = std::tuple<Isa, int>;
class Linear : public testing::TestWithParam<Case> {
 protected:
  static Isa isa() { return std::get<0>(GetParam()); }
  static DType type() { return static_cast<DType>(std::get<1>(GetParam())); }
};

TEST_P(Linear, MatchesReferenceForEveryNumberOfRows) {
  Backend fast(isa()), reference(Isa::kReference);
  for (const Shape& shape : shapes_of(type())) {
    const auto bytes = random_weight(type(), shape.outputs, shape.cols, 1);
    const WeightView w = view(type(), shape.outputs, shape.cols, bytes);
    const auto x = random_rows(kMaxRows, shape.cols, 2);
    const auto expected = reference.apply(reference.pack(w), x.data(), kMaxRows);
    const auto scale = magnitudes(w, x, kMaxRows);
    const PackedMatrix packed = fast.pack(w);
    const auto batch = fast.apply(packed, x.data(), kMaxRows);
    double worst = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      worst =
          std::max(worst, std::fabs(double{batch[i]} - double{expected[i]}) / (scale[i] + 1e-30));
      ASSERT_TRUE(std::isfinite(batch[i]));
    }
    EXPECT_LE(worst, tolerance(isa(), type())) << shape.outputs << "x" << shape.cols;
    for (int64_t rows : kRowCounts) {
      const auto y = fast.apply(packed, x.data(), rows);
      EXPECT_TRUE(same_bits(y, std::span(batch).first(y.size())))
          << rows << " rows of " << shape.outputs << "x" << shape.cols;
    }
    const auto last = fast.apply(packed, &x[static_cast<size_t>((kMaxRows - 1) * shape.cols)], 1);
    EXPECT_TRUE(same_bits(last, std::span(batch).last(last.size())));
  }
}

TEST_P(Linear, BitsDoNotDependOnThreads) {
  const Shape shape = shapes_of(type()).back();
  const auto bytes = random_weight(type(), shape.outputs, shape.cols, 3);
  const auto x = random_rows(kMaxRows, shape.cols, 4);
  Backend one(isa(), 1);
  const PackedMatrix packed = one.pack(view(type(), shape.outputs, shape.cols, bytes));
  for (int64_t rows : {int64_t{1}, int64_t{8}, kMaxRows}) {
    const auto expected = one.apply(packed, x.data(), rows);
    for (int threads : {2, 3}) {
      Backend many(isa(), threads);
      EXPECT_TRUE(same_bits(many.apply(packed, x.data(), rows), expected)) << threads << " threads";
    }
  }
}

TEST_P(Linear, WritesSeveralOutputsWithBiasAndResidualBetweenStrides) {
  const int64_t cols = shapes_of(type())[1].cols, x_stride = cols + 3;
  Backend fast(isa());
  const auto a_bytes = random_weight(type(), 50, cols, 5),
             b_bytes = random_weight(type(), 19, cols, 6);
  const PackedMatrix a = fast.pack(view(type(), 50, cols, a_bytes));
  const PackedMatrix b = fast.pack(view(type(), 19, cols, b_bytes));
  const auto bias = random_rows(1, 50, 7);
  for (int64_t rows : kRowCounts) {
    const auto x = random_rows(rows, x_stride, 8);
    std::vector<float> dense;
    for (int64_t m = 0; m < rows; ++m)
      dense.insert(dense.end(), &x[m * x_stride], &x[m * x_stride] + cols);
    auto ya = random_rows(rows, 53, 9);
    auto yb = random_rows(rows, 19, 10);
    auto expected_a = ya;
    auto expected_b = fast.apply(b, dense.data(), rows);
    const auto plain_a = fast.apply(a, dense.data(), rows);
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < 50; ++n) {
        float& y = expected_a[m * 53 + n];
        y = (plain_a[m * 50 + n] + bias[n]) + y;
      }
    }
    LinearOutput outputs[2];
    outputs[0] = {
        .weight = &a, .bias = bias.data(), .y = ya.data(), .y_stride = 53, .accumulate = true};
    outputs[1] = {.weight = &b, .y = yb.data(), .y_stride = 19};
    fast.linear(x.data(), x_stride, rows, outputs);
    if (isa() != Isa::kReference) {
      EXPECT_TRUE(same_bits(ya, expected_a)) << rows;
      EXPECT_TRUE(same_bits(yb, expected_b)) << rows;
    }
    for (size_t i = 0; i < ya.size(); ++i) {
      ASSERT_NEAR(ya[i], expected_a[i], 1e-3f * (1 + std::fabs(expected_a[i])));
    }
  }
}

TEST_P(Linear, EmbedsTheFilesRows) {
  Backend fast(isa());
  for (const Shape& shape : shapes_of(type())) {
    const auto bytes = random_weight(type(), shape.outputs, shape.cols, 11);
    const PackedMatrix packed = fast.pack(view(type(), shape.outputs, shape.cols, bytes));
    std::vector<int32_t> tokens = {static_cast<int32_t>(shape.outputs - 1), 0,
                                   static_cast<int32_t>(shape.outputs / 2)};
    std::vector<float> rows(tokens.size() * static_cast<size_t>(shape.cols)), expected(rows.size());
    fast.ops.embed(fast.stream, {.table = &packed, .tokens = tokens, .out = rows.data()});
    for (size_t t = 0; t < tokens.size(); ++t) {
      reference::dequantize_row(type(), &bytes[tokens[t] * core::row_bytes(type(), shape.cols)],
                                shape.cols, &expected[t * shape.cols]);
    }
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], expected[i]) << i;  // -0 equals 0
    fast.ops.embed(fast.stream,
                   {.table = &packed, .tokens = tokens, .out = rows.data(), .scale = 25.25f});
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], 25.25f * expected[i]) << i;
  }
}

TEST_P(Linear, UndoesTheRowOrderOfRotaryHeads) {
  const int64_t cols = shapes_of(type())[1].cols;
  constexpr int64_t kRows = 48, kDim = 12;
  const auto ordered = random_weight(type(), kRows, cols, 12);
  std::vector<std::byte> file(ordered.size());
  const int64_t row_bytes = core::row_bytes(type(), cols);
  for (int64_t head = 0; head < kRows; head += kDim) {
    for (int64_t i = 0; i < kDim / 2; ++i) {
      std::memcpy(&file[(head + 2 * i) * row_bytes], &ordered[(head + i) * row_bytes], row_bytes);
      std::memcpy(&file[(head + 2 * i + 1) * row_bytes],
                  &ordered[(head + i + kDim / 2) * row_bytes], row_bytes);
    }
  }
  Backend fast(isa());
  WeightView w = view(type(), kRows, cols, file);
  w.order.rope_interleaved_head_dim = kDim;
  const PackedMatrix permuted = fast.pack(w), plain = fast.pack(view(type(), kRows, cols, ordered));
  ASSERT_EQ(permuted.data.size(), plain.data.size());
  EXPECT_EQ(std::memcmp(permuted.data.data(), plain.data.data(), permuted.data.size()), 0);
}

TEST_P(Linear, PassesOnWhatIsNotFinite) {
  const Shape shape = shapes_of(type())[1];
  const auto bytes = random_weight(type(), shape.outputs, shape.cols, 13);
  Backend fast(isa());
  const PackedMatrix packed = fast.pack(view(type(), shape.outputs, shape.cols, bytes));
  for (float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int64_t rows : {2, 40}) {
      auto x = random_rows(rows, shape.cols, 14);
      x[static_cast<size_t>(shape.cols + 3)] = poison;
      const auto y = fast.apply(packed, x.data(), rows);
      for (int64_t n = 0; n < shape.outputs; ++n) {
        EXPECT_TRUE(std::isfinite(y[static_cast<size_t>(n)]));
        EXPECT_FALSE(std::isfinite(y[static_cast<size_t>(shape.outputs + n)])) << n;
      }
    }
  }
}

TEST_P(Linear, TinyAndZeroRowsAreHarmless) {
  const Shape shape = shapes_of(type())[1];
  const auto bytes = random_weight(type(), shape.outputs, shape.cols, 15);
  Backend fast(isa());
  const PackedMatrix packed = fast.pack(view(type(), shape.outputs, shape.cols, bytes));
  for (float value : {0.0f, 1e-38f, 1e-45f}) {
    const std::vector<float> x(static_cast<size_t>(shape.cols), value);
    for (float y : fast.apply(packed, x.data(), 1)) EXPECT_LE(std::fabs(y), 1e-24f);
  }
  EXPECT_TRUE(fast.apply(packed, nullptr, 0).empty());
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(device::isa_name(std::get<0>(info.param))) + "_" +
         std::string(core::info(static_cast<DType>(std::get<1>(info.param))).name);
}

INSTANTIATE_TEST_SUITE_P(All, Linear,
                         testing::Combine(testing::ValuesIn(isas()),
                                          testing::Range(0, core::kNumDTypes)),
                         case_name);

// The float steps are the same and integer sums are exact, so the instruction set does not show.
void expect_the_bits_of_avx2(Isa isa) {
  Backend narrow(Isa::kAvx2), wide(isa);
  for (int t = 0; t < core::kNumDTypes; ++t) {
    const auto type = static_cast<DType>(t);
    if (type == DType::kBF16) continue;  // kAvx512 rounds the activations
    const Shape shape = shapes_of(type).back();
    const auto bytes = random_weight(type, shape.outputs, shape.cols, 16);
    const PackedMatrix packed = narrow.pack(view(type, shape.outputs, shape.cols, bytes));
    for (int64_t rows : {1, 5, 40}) {
      const auto x = random_rows(rows, shape.cols, 17);
      EXPECT_TRUE(
          same_bits(narrow.apply(packed, x.data(), rows), wide.apply(packed, x.data(), rows)))
          << device::isa_name(isa) << " " << core::info(type).name << " " << rows;
    }
  }
}

TEST(LinearIsa, EveryVectorSetGivesTheSameBits) {
  for (Isa isa : isas()) {
    if (isa != Isa::kReference) expect_the_bits_of_avx2(isa);
  }
}

// q, k in one type and v in another, as K-quant files have them, and a plain matrix beside them.
TEST(LinearIsa, OutputsOfDifferentTypesShareACall) {
  for (Isa isa : isas()) {
    Backend fast(isa);
    const std::vector<DType> types = {DType::kQ4_K, DType::kBF16, DType::kQ6_K, DType::kF32};
    std::vector<PackedMatrix> packed;
    for (DType type : types) {
      const auto bytes = random_weight(type, 40, 512, 18);
      packed.push_back(fast.pack(view(type, 40, 512, bytes)));
    }
    for (int64_t rows : {3, 50}) {
      const auto x = random_rows(rows, 512, 19);
      std::vector<std::vector<float>> y(types.size(),
                                        std::vector<float>(static_cast<size_t>(rows * 40)));
      std::vector<LinearOutput> outputs(types.size());
      for (size_t i = 0; i < types.size(); ++i) {
        outputs[i] = {.weight = &packed[i], .y = y[i].data(), .y_stride = 40};
      }
      fast.linear(x.data(), 512, rows, outputs);
      for (size_t i = 0; i < types.size(); ++i) {
        EXPECT_TRUE(same_bits(y[i], fast.apply(packed[i], x.data(), rows))) << i;
      }
    }
  }
}

}  // namespace
}  // namespace ops
