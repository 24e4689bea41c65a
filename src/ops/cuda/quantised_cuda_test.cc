// Products with weights that stay quantised, of every type, against sums in double over what the
// reference dequantises: odd numbers of rows and outputs, K that fills no whole unit, bias,
// residuals, few SMs; what lies around the outputs stays untouched. Then what is promised bit for
// bit: rows alone and among others, any number of SMs, replayed in a graph; dequantised weights are
// those that loading as BF16 gives, and embeddings are the reference's.
#include <array>
#include <cstring>
#include <string>

#include "ops/cuda/gpu_fixture.h"
#include "ops/cuda/quantised.h"
#include "ops/cuda/quantised_world.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops::cuda {
namespace {

constexpr int64_t kRowsMax = 32;
constexpr uint32_t kSeed = 20240611;

// A weight and rows of x on both sides, with sums and sums of magnitudes in double.
struct Problem {
  Weight weight;
  std::vector<float> values;  // (N, K)
  std::vector<uint16_t> x;    // (kRowsMax, x_stride)
  int64_t x_stride = 0;
  const __nv_bfloat16* x_device = nullptr;
  std::vector<float> bias;
  const float* bias_device = nullptr;
  std::vector<double> sums, magnitudes;  // (kRowsMax, N)
};

class QuantisedCudaTest : public GpuTest {
 protected:
  Problem make_problem(core::DType type, int64_t n, int64_t k) {
    Problem p;
    const std::vector<std::byte> stored = random_blocks(type, n, k, kSeed);
    p.weight = upload_weight(type, n, k, stored);
    p.values.resize(static_cast<size_t>(n * k));
    for (int64_t i = 0; i < n; ++i) {
      reference::dequantize_row(type, stored.data() + i * core::row_bytes(type, k), k,
                                &p.values[static_cast<size_t>(i * k)]);
    }
    std::mt19937 random(kSeed + 1);
    p.x_stride = k + 8;
    p.x.resize(static_cast<size_t>(kRowsMax * p.x_stride));
    for (uint16_t& value : p.x) {
      value = reference::float_to_bfloat16(static_cast<float>(static_cast<int32_t>(random())) *
                                           0x1p-31f);
    }
    p.x_device = reinterpret_cast<const __nv_bfloat16*>(upload(p.x));
    for (int64_t i = 0; i < n; ++i) p.bias.push_back(static_cast<float>(i % 13) - 6.0f);
    p.bias_device = upload(p.bias);
    for (int64_t row = 0; row < kRowsMax; ++row) {
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t j = 0; j < k; ++j) {
          const double product =
              double{reference::bfloat16_to_float(p.x[static_cast<size_t>(row * p.x_stride + j)])} *
              double{p.values[static_cast<size_t>(i * k + j)]};
          sum += product;
          magnitude += std::abs(product);
        }
        p.sums.push_back(sum);
        p.magnitudes.push_back(magnitude);
      }
    }
    return p;
  }

  Weight upload_weight(core::DType type, int64_t n, int64_t k,
                       const std::vector<std::byte>& stored) {
    std::vector<std::byte> packed(static_cast<size_t>(quantised_bytes(type, n, k)));
    const int64_t tile_bytes = quantised_bytes(type, 16, k);
    for (int64_t tile = 0; tile * 16 < n; ++tile) {
      std::array<const std::byte*, 16> rows{};
      for (int64_t i = 0; i < 16 && tile * 16 + i < n; ++i) {
        rows[static_cast<size_t>(i)] = stored.data() + (tile * 16 + i) * core::row_bytes(type, k);
      }
      pack_quantised(type, rows, k, packed.data() + tile * tile_bytes);
    }
    return {type, upload(packed), n, k};
  }

  LinearArgs args_of(const Problem& p, int64_t rows) const {
    return {.x = p.x_device,
            .x_stride = p.x_stride,
            .weight = p.weight,
            .rows = rows,
            .y_stride = p.weight.rows + 16};
  }

  // (rows + 1, y_stride) as floats.
  std::vector<float> run(LinearArgs args, int num_sms, const std::vector<float>& before) {
    const auto count = static_cast<size_t>((args.rows + 1) * args.y_stride);
    if (!before.empty()) {
      float* const y = upload(before);
      args.y32 = y;
      quantised_linear(stream(), args, num_sms);
      return download(y, count);
    }
    auto* const y = poisoned<uint16_t>(count);
    args.y = reinterpret_cast<__nv_bfloat16*>(y);
    quantised_linear(stream(), args, num_sms);
    const std::vector<uint16_t> stored = download(y, count);
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = reference::bfloat16_to_float(stored[i]);
    return values;
  }

  // BF16 outputs (with a bias), FP32 ones, and FP32 ones added to a residual.
  void check(const Problem& p, int64_t rows, int num_sms) {
    for (const int way : {0, 1, 2, 3}) {
      LinearArgs args = args_of(p, rows);
      std::vector<float> before;
      if (way >= 2) {
        before.resize(static_cast<size_t>((rows + 1) * args.y_stride));
        for (size_t i = 0; i < before.size(); ++i) before[i] = static_cast<float>(i % 17) - 8.0f;
      }
      if (way % 2 == 1) args.bias = p.bias_device;
      args.accumulate = way == 3;
      SCOPED_TRACE("way " + std::to_string(way));
      compare(p, args, run(args, num_sms, before), before);
      if (HasFailure()) return;
    }
  }

  void compare(const Problem& p, const LinearArgs& args, const std::vector<float>& got,
               const std::vector<float>& before) {
    const int64_t n = args.weight.rows;
    int wrong = 0;
    double worst = 0;
    for (int64_t at = 0; at < static_cast<int64_t>(got.size()); ++at) {
      const int64_t row = at / args.y_stride, output = at % args.y_stride;
      const float value = got[static_cast<size_t>(at)];
      if (row >= args.rows || output >= n) {
        const bool untouched =
            before.empty() ? std::isnan(value) : value == before[static_cast<size_t>(at)];
        if (!untouched && ++wrong <= 8) {
          ADD_FAILURE() << "row " << row << " output " << output << " was touched: " << value;
        }
        continue;
      }
      const auto i = static_cast<size_t>(row * n + output);
      double expected = p.sums[i];
      if (args.bias != nullptr) expected += double{p.bias[static_cast<size_t>(output)]};
      if (args.accumulate) expected += double{before[static_cast<size_t>(at)]};
      const double exact =
          1e-5 * std::sqrt(static_cast<double>(args.weight.cols)) * p.magnitudes[i];
      const double tolerance = exact + (before.empty() ? 0x1p-8 * std::abs(expected) : 0.0) + 1e-6;
      const double error = std::abs(double{value} - expected);
      worst = std::max(worst, error / tolerance);
      if (!(error <= tolerance) && ++wrong <= 8) {
        ADD_FAILURE() << "row " << row << " output " << output << ": " << value << ", expected "
                      << expected << " within " << tolerance;
      }
    }
    EXPECT_EQ(wrong, 0) << "of " << got.size();
    if (!before.empty()) worst_ = std::max(worst_, worst);
  }

  double worst_ = 0;  // error of FP32 outputs, in tolerances
};

TEST_F(QuantisedCudaTest, EqualsSumsInDouble) {
  for (const core::DType type : kQuantisedTypes) {
    const int64_t block = core::info(type).block_elements;
    for (const auto& [n, k] : {std::array<int64_t, 2>{8, block},
                               {24, 3 * block},
                               {136, 1280},
                               {1000, 512 + block},
                               {4104, 256}}) {
      const Problem p = make_problem(type, n, k);
      for (const int64_t rows : {1, 2, 7, 8, 9, 16, 17, 31, 32}) {
        SCOPED_TRACE(std::string(core::info(type).name) + ", M " + std::to_string(rows) + ", N " +
                     std::to_string(n) + ", K " + std::to_string(k) + ", seed " +
                     std::to_string(kSeed));
        check(p, rows, gpu_.num_sms);
        if (HasFailure()) return;
      }
      clear();
    }
    printf("%s: worst FP32 error %.3f tolerances\n", core::info(type).name.data(), worst_);
    worst_ = 0;
  }
}

TEST_F(QuantisedCudaTest, RowsKeepTheirBitsOnAnySms) {
  for (const core::DType type : kQuantisedTypes) {
    SCOPED_TRACE(core::info(type).name);
    const Problem p = make_problem(type, 520, 2048);
    const std::vector<float> zeros(static_cast<size_t>((kRowsMax + 1) * (p.weight.rows + 16)));
    const std::vector<float> all = run(args_of(p, kRowsMax), gpu_.num_sms, zeros);
    for (const int num_sms : {gpu_.num_sms, 100, 7, 1}) {
      for (const int64_t rows : {1, 3, 8, 9, 16, 17, 30}) {
        const std::vector<float> got = run(args_of(p, rows), num_sms, zeros);
        const auto count = static_cast<size_t>(rows * (p.weight.rows + 16));
        EXPECT_EQ(0, std::memcmp(got.data(), all.data(), count * 4))
            << rows << " rows on " << num_sms << " SMs";
      }
    }
    clear();
  }
}

TEST_F(QuantisedCudaTest, DequantisedWeightsAreThoseOfBf16) {
  for (const core::DType type : kQuantisedTypes) {
    SCOPED_TRACE(core::info(type).name);
    const int64_t n = 72, k = 3 * core::info(type).block_elements;
    const Problem p = make_problem(type, n, k);
    auto* const out = poisoned<uint16_t>(static_cast<size_t>(n * k));
    dequantise(stream(), p.weight, reinterpret_cast<__nv_bfloat16*>(out));
    const std::vector<uint16_t> got = download(out, static_cast<size_t>(n * k));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], reference::float_to_bfloat16(p.values[i])) << "element " << i;
    }
    clear();
  }
}

TEST_F(QuantisedCudaTest, EmbedsWhatTheReferenceReads) {
  for (const core::DType type : kQuantisedTypes) {
    SCOPED_TRACE(core::info(type).name);
    const int64_t n = 72, k = 5 * core::info(type).block_elements;
    const Problem p = make_problem(type, n, k);
    const std::vector<int32_t> tokens = {71, -1, 0, 8, 17};
    auto* const out = poisoned<float>(tokens.size() * static_cast<size_t>(k));
    embed(stream(), {.table = p.weight,
                     .tokens = upload(tokens),
                     .rows = static_cast<int64_t>(tokens.size()),
                     .width = k,
                     .scale = 1.5f,
                     .hidden = out});
    const std::vector<float> got = download(out, tokens.size() * static_cast<size_t>(k));
    for (size_t i = 0; i < got.size(); ++i) {
      const int32_t token = tokens[i / static_cast<size_t>(k)];
      const size_t at = static_cast<size_t>(std::max(token, 0)) * static_cast<size_t>(k) +
                        i % static_cast<size_t>(k);
      ASSERT_EQ(got[i], token < 0 ? 0.0f : 1.5f * p.values[at]) << "element " << i;
    }
    clear();
  }
}

// Products in a chain, each starting while the one before ends.
TEST_F(QuantisedCudaTest, AGraphReplaysProductsInARow) {
  for (const core::DType type : kQuantisedTypes) {
    SCOPED_TRACE(core::info(type).name);
    const Problem p = make_problem(type, 1024, 1024);
    auto* const between = poisoned<__nv_bfloat16>(8 * 1024);
    auto* const y = poisoned<float>(8 * 1024);
    LinearArgs one = args_of(p, 8), two = args_of(p, 8);
    one.y_stride = two.y_stride = two.x_stride = 1024;
    one.y = between;
    two.x = between;
    two.y32 = y;
    const auto both = [&] {
      quantised_linear(stream(), one, gpu_.num_sms);
      quantised_linear(stream(), two, gpu_.num_sms);
    };
    both();
    const std::vector<float> eager = download(y, 8 * 1024);
    auto graph = device::cuda::Graph::capture(stream_, [&] {
      for (int i = 0; i < 5; ++i) both();
    });
    ASSERT_TRUE(graph.ok()) << graph.error().message;
    stream_.fill(y, 0xff, 8 * 1024 * 4);
    for (int i = 0; i < 20; ++i) graph.value().launch(stream_);
    EXPECT_EQ(0, std::memcmp(download(y, 8 * 1024).data(), eager.data(), 8 * 1024 * 4));
    clear();
  }
}

}  // namespace
}  // namespace ops::cuda
