// Products of e4m3 rows on the GPU, all ways (the kernel for few rows, cuBLASLt with scales of
// rows, deterministic, with a bias), against sums in double on the CPU over the same codes: odd
// shapes, residuals, all numbers of one sign at a large K, where short sums would show; what lies
// around the outputs stays untouched. Then what is promised bit for bit, and who is refused.
#include "ops/cuda/fp8_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "ops/cuda/fp8_reference.h"
#include "ops/cuda/gpu_fixture.h"

namespace ops::cuda {
namespace {

constexpr int64_t kRowCounts[] = {1, 2, 3, 8, 9, 17, 33, 64, 65, 200};
constexpr int64_t kRowsMax = 200;
constexpr int64_t kSmallRowsMax = 64;
constexpr uint32_t kSeed = 20240612;
// Of sum |x w|. The matrix unit cuts products off, so that sums of one sign err to one side.
constexpr double kTolerance = 0x1p-11, kTolerancePositive = 0x1p-9;

enum class Way { kSmall, kCublas, kDeterministic };
constexpr Way kWays[] = {Way::kSmall, Way::kCublas, Way::kDeterministic};

const char* name_of(Way way) {
  return way == Way::kSmall ? "small" : way == Way::kCublas ? "cuBLASLt" : "deterministic";
}

struct Shape {
  int64_t n, k;
  bool positive = false;  // all numbers
};

// Rows in codes on both sides.
struct Operand {
  Fp8Rows device;
  std::vector<float> values;  // (rows, K) without scales
  std::vector<float> scales;
};

// One problem with its answer.
struct Problem {
  Shape shape;
  Operand x, w;
  std::vector<float> bias;
  const float* bias_device = nullptr;
  std::vector<double> sums, magnitudes;  // (kRowsMax, n)
};

class Fp8LinearTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!Fp8Linear::is_supported(gpu_)) GTEST_SKIP() << gpu_.name << " has no FP8 products";
    for (const bool deterministic : {false, true}) {
      LinearOptions options;
      options.small_rows_max = 0;
      options.deterministic = deterministic;
      auto made = Fp8Linear::create(gpu_, options);
      ASSERT_TRUE(made.ok()) << made.error().message;
      (deterministic ? deterministic_ : cublas_) = std::move(made).value();
    }
  }

  Operand make_operand(int64_t rows, int64_t k, bool positive, uint32_t seed) {
    std::vector<uint16_t> numbers(static_cast<size_t>(rows * k));
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < numbers.size(); ++i) {
      state = state * 1664525u + 1013904223u;
      float x = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
      if (positive) x = std::fabs(x);
      numbers[i] = reference::float_to_bfloat16(
          std::ldexp(x, static_cast<int>(i / static_cast<size_t>(k) % 7)));
    }
    Operand made;
    made.device = fp8_weight_rows(
        poisoned<std::byte>(static_cast<size_t>(fp8_weight_bytes(rows, k))), rows, k);
    quantise_rows(stream(),
                  {.x = reinterpret_cast<const __nv_bfloat16*>(upload(numbers)),
                   .x_stride = k,
                   .rows = rows,
                   .width = k},
                  made.device);
    return made;
  }
  // What its codes say.
  void decode(Operand& operand, size_t rows, size_t k) {
    const auto cols = static_cast<size_t>(fp8_cols(static_cast<int64_t>(k)));
    const auto codes = download(operand.device.codes, rows * cols);
    operand.scales = download(operand.device.scales, rows);
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < k; ++i) {
        operand.values.push_back(fp8_reference::decode(codes[row * cols + i]));
      }
    }
  }

  Problem make_problem(const Shape& shape) {
    Problem p{.shape = shape};
    p.x = make_operand(kRowsMax, shape.k, shape.positive, kSeed);
    p.w = make_operand(shape.n, shape.k, shape.positive, kSeed + 1);
    decode(p.x, kRowsMax, static_cast<size_t>(shape.k));
    decode(p.w, static_cast<size_t>(shape.n), static_cast<size_t>(shape.k));
    p.bias.resize(static_cast<size_t>(shape.n));
    for (size_t i = 0; i < p.bias.size(); ++i) p.bias[i] = static_cast<float>(i % 13) - 6.0f;
    p.bias_device = upload(p.bias);
    for (size_t row = 0; row < static_cast<size_t>(kRowsMax); ++row) {
      for (size_t n = 0; n < static_cast<size_t>(shape.n); ++n) {
        const float* a = &p.x.values[row * static_cast<size_t>(shape.k)];
        const float* b = &p.w.values[n * static_cast<size_t>(shape.k)];
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < shape.k; ++k) {
          const double product = double{a[k]} * double{b[k]};
          sum += product;
          magnitude += std::abs(product);
        }
        const double scale = double{p.x.scales[row]} * double{p.w.scales[n]};
        p.sums.push_back(sum * scale);
        p.magnitudes.push_back(magnitude * scale);
      }
    }
    return p;
  }

  void run(Way way, const Fp8LinearArgs& args) {
    if (way == Way::kSmall) {
      fp8_small_linear(stream(), args, gpu_.num_sms);
    } else {
      const auto done = (way == Way::kCublas ? cublas_ : deterministic_)->run(stream_, args);
      ASSERT_TRUE(done.ok()) << done.error().message;
    }
  }

  static Fp8LinearArgs args_of(const Operand& x, const Operand& w, const Shape& shape,
                               int64_t rows) {
    Fp8LinearArgs args;
    args.x = x.device.codes;
    args.x_scales = x.device.scales;
    args.weight = {core::DType::kF8E4M3, reinterpret_cast<const std::byte*>(w.device.codes),
                   shape.n, shape.k};
    args.rows = rows;
    args.y_stride = shape.n;
    return args;
  }

  void check(const Problem& p, Way way, int64_t rows, bool fp32, bool bias, bool accumulate) {
    Fp8LinearArgs args = args_of(p.x, p.w, p.shape, rows);
    args.y_stride = p.shape.n + 16;
    if (bias) args.bias = p.bias_device;
    const auto count = static_cast<size_t>((rows + 1) * args.y_stride);
    std::vector<float> before(count), got(count);
    if (fp32) {
      for (size_t i = 0; i < count; ++i) before[i] = static_cast<float>(i % 17) - 8.0f;
      args.y32 = upload(before);
      args.accumulate = accumulate;
      run(way, args);
      got = download(args.y32, count);
    } else {
      uint16_t* const y = poisoned<uint16_t>(count);
      args.y = reinterpret_cast<__nv_bfloat16*>(y);
      run(way, args);
      const auto bits = download(y, count);
      for (size_t i = 0; i < count; ++i) got[i] = reference::bfloat16_to_float(bits[i]);
    }
    compare(p, args, fp32 ? before : std::vector<float>{}, got);
  }

  // `before`: of FP32 outputs.
  void compare(const Problem& p, const Fp8LinearArgs& args, const std::vector<float>& before,
               const std::vector<float>& got) {
    int wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / args.y_stride;
      const int64_t n = static_cast<int64_t>(i) % args.y_stride;
      if (row >= args.rows || n >= args.n()) {
        const bool untouched = before.empty() ? std::isnan(got[i]) : got[i] == before[i];
        if (!untouched && ++wrong <= 3) ADD_FAILURE() << "written: row " << row << " at " << n;
        continue;
      }
      const auto at = static_cast<size_t>(row * args.n() + n);
      double expected = p.sums[at];
      if (args.bias != nullptr) expected += double{p.bias[static_cast<size_t>(n)]};
      if (args.accumulate) expected += double{before[i]};
      const double error = std::abs(double{got[i]} - expected);
      const double rounding = before.empty() ? 0x1p-8 : 0x1p-22;
      const double tolerance = p.shape.positive ? kTolerancePositive : kTolerance;
      const double allowed = tolerance * p.magnitudes[at] + rounding * std::abs(expected) + 1e-6;
      if (!before.empty()) {
        worst_ = std::max(worst_, (error - rounding * std::abs(expected)) / p.magnitudes[at]);
      }
      if (!(error <= allowed) && ++wrong <= 3) {
        ADD_FAILURE() << "row " << row << " output " << n << ": " << got[i] << ", expected "
                      << expected << " within " << allowed;
      }
    }
    EXPECT_EQ(wrong, 0) << "of " << got.size();
  }

  std::vector<float> outputs(Way way, const Shape& shape, const Operand& x, const Operand& w,
                             int64_t rows) {
    Fp8LinearArgs args = args_of(x, w, shape, rows);
    args.y32 = poisoned<float>(static_cast<size_t>(rows * shape.n));
    run(way, args);
    return download(args.y32, static_cast<size_t>(rows * shape.n));
  }

  // Rows 0..M-1 alone equal the same rows among `rows_all`, bit for bit.
  void expect_rows_alone_equal(Way way, const Shape& shape, const std::vector<int64_t>& counts,
                               int64_t rows_all) {
    const Operand x = make_operand(rows_all, shape.k, false, kSeed + 2);
    const Operand w = make_operand(shape.n, shape.k, false, kSeed + 3);
    const auto all = outputs(way, shape, x, w, rows_all);
    for (const int64_t rows : counts) {
      const auto got = outputs(way, shape, x, w, rows);
      size_t wrong = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        wrong += std::memcmp(&got[i], &all[i], 4) != 0 ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0u) << name_of(way) << ", N " << shape.n << ", K " << shape.k << ": of "
                           << got.size() << " outputs of " << rows << " rows";
    }
    clear();
  }

  std::unique_ptr<Fp8Linear> cublas_, deterministic_;
  double worst_ = 0;  // error of FP32 outputs / sum |x w|
};

TEST_F(Fp8LinearTest, EveryWayEqualsSumsInDouble) {
  for (const Shape& shape : {Shape{16, 16},
                             {144, 64},
                             {272, 1040},
                             {1008, 576},
                             {576, 1536},
                             {48, 14336},
                             {48, 14336, true}}) {
    const Problem p = make_problem(shape);
    for (const Way way : kWays) {
      if (way == Way::kSmall && !gpu_.is_hopper()) continue;
      worst_ = 0;
      for (const int64_t rows : kRowCounts) {
        if (rows > kSmallRowsMax && way == Way::kSmall) continue;
        SCOPED_TRACE(std::string(name_of(way)) + ", M " + std::to_string(rows) + ", N " +
                     std::to_string(shape.n) + ", K " + std::to_string(shape.k) + ", seed " +
                     std::to_string(kSeed));
        for (const bool bias : {false, true}) {
          check(p, way, rows, false, bias, false);
          check(p, way, rows, true, bias, false);
          check(p, way, rows, true, bias, true);
        }
        if (HasFailure()) break;
      }
      printf("%s, N %d, K %d%s: error / sum |x w| up to 2^%.1f\n", name_of(way),
             static_cast<int>(shape.n), static_cast<int>(shape.k),
             shape.positive ? ", positive" : "", std::log2(worst_ + 1e-30));
    }
    clear();
  }
}

TEST_F(Fp8LinearTest, RowsKeepTheirBits) {
  std::vector<int64_t> counts;
  for (int64_t rows = 1; rows <= kSmallRowsMax; ++rows) counts.push_back(rows);
  if (gpu_.is_hopper()) {
    expect_rows_alone_equal(Way::kSmall, {6144, 4096}, counts, kSmallRowsMax);
    expect_rows_alone_equal(Way::kSmall, {4096, 14336}, {1, 8, 9, 33}, kSmallRowsMax);
  }
  counts = {1, 2, 7, 8, 9, 16, 31, 33, 64, 65, 100, 127, 128, 129, 255, 257, 511, 512, 777, 1024};
  for (const Shape& shape : {Shape{6144, 4096}, {4096, 4096}, {576, 1536}, {4096, 14336}}) {
    expect_rows_alone_equal(Way::kDeterministic, shape, counts, 2048);
  }
}

TEST_F(Fp8LinearTest, ANumberThatIsNoneSpreadsInItsRowAlone) {
  const Shape shape{64, 256};
  Operand x = make_operand(3, shape.k, false, kSeed + 4);
  const Operand w = make_operand(shape.n, shape.k, false, kSeed + 5);
  const float nan = std::nanf("");
  stream_.copy(x.device.scales + 1, &nan, 4);
  for (const Way way : kWays) {
    if (way == Way::kSmall && !gpu_.is_hopper()) continue;
    const auto y = outputs(way, shape, x, w, 3);
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(std::isnan(y[i]), i / 64 == 1) << name_of(way) << ", output " << i;
    }
  }
}

TEST_F(Fp8LinearTest, AGraphReplaysProductsInARow) {
  const Shape shape{1024, 1024};
  const Operand x = make_operand(128, shape.k, false, kSeed + 6);
  const Operand w = make_operand(shape.n, shape.k, false, kSeed + 7);
  for (const Way way : kWays) {
    if (way == Way::kSmall && !gpu_.is_hopper()) continue;
    SCOPED_TRACE(name_of(way));
    const int64_t rows = way == Way::kSmall ? 8 : 128;
    Fp8LinearArgs one = args_of(x, w, shape, rows), two = one;
    auto* const between = reinterpret_cast<__nv_bfloat16*>(poisoned<uint16_t>(128 * 1024));
    const Fp8Rows again{poisoned<uint8_t>(128 * 1024), poisoned<float>(128)};
    one.y = between;
    two.x = again.codes;
    two.x_scales = again.scales;
    two.y32 = poisoned<float>(128 * 1024);
    const auto both = [&] {
      run(way, one);
      quantise_rows(stream(), {.x = between, .x_stride = 1024, .rows = rows, .width = 1024}, again);
      run(way, two);
    };
    both();
    const auto count = static_cast<size_t>(rows * shape.n);
    const auto eager = download(two.y32, count);
    auto graph = device::cuda::Graph::capture(stream_, [&] {
      for (int i = 0; i < 5; ++i) both();
    });
    ASSERT_TRUE(graph.ok()) << graph.error().message;
    stream_.fill(two.y32, 0xff, static_cast<int64_t>(count) * 4);
    for (int i = 0; i < 20; ++i) graph.value().launch(stream_);
    EXPECT_EQ(0, std::memcmp(download(two.y32, count).data(), eager.data(), count * 4));
  }
}

TEST_F(Fp8LinearTest, AGpuWithoutFp8IsRefused) {
  device::cuda::GpuInfo old = gpu_;
  old.name = "An A100", old.major = 8, old.minor = 0;
  const auto made = Fp8Linear::create(old, {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, base::Code::kUnsupported);
  EXPECT_EQ(made.error().message, "An A100 has compute capability 8.0: FP8 products need 8.9");
}

}  // namespace
}  // namespace ops::cuda
