// Rows in e4m3 on the GPU: codes and scales against the definition on the CPU, bit for bit, at odd
// widths and with rows that have no finite or no countable magnitude; norms and gates that end in
// codes against the op that ends in BF16 followed by the quantiser, bit for bit; what lies behind
// the outputs stays untouched.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "ops/cuda/fp8_reference.h"
#include "ops/cuda/fp8_rows.h"
#include "ops/cuda/gpu_fixture.h"

namespace ops::cuda {
namespace {

using Bf16s = std::vector<uint16_t>;

constexpr size_t kWidths[] = {8,    64,   120,  128,  136,   576,  1536,
                              4096, 4104, 8192, 8200, 14336, 32768};

class Fp8RowsTest : public GpuTest {
 protected:
  // Rows of very different magnitudes.
  std::vector<float> floats(size_t rows, size_t width) {
    std::normal_distribution<float> normal;
    std::vector<float> values(rows * width);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = normal(random_) * std::ldexp(1.0f, static_cast<int>(i / width % 41) - 20);
    }
    return values;
  }
  static Bf16s rounded(const std::vector<float>& values) {
    Bf16s bits(values.size());
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = reference::float_to_bfloat16(values[i]);
    return bits;
  }

  // One row more than `rows`, which must stay poison.
  Fp8Rows make_rows(size_t rows, size_t width) {
    const auto cols = static_cast<size_t>(fp8_cols(static_cast<int64_t>(width)));
    return {poisoned<uint8_t>((rows + 1) * cols), poisoned<float>(rows + 1)};
  }
  struct Host {
    std::vector<uint8_t> codes;
    std::vector<float> scales;
  };
  Host fetch(const Fp8Rows& from, size_t rows, size_t width) {
    const auto cols = static_cast<size_t>(fp8_cols(static_cast<int64_t>(width)));
    return {download(from.codes, (rows + 1) * cols), download(from.scales, rows + 1)};
  }
  void expect_equal(const Host& expected, const Host& got, const char* what, size_t width) {
    const size_t cols = expected.codes.size() / expected.scales.size();
    int shown = 0;
    for (size_t i = 0; i < expected.codes.size() && shown < 8; ++i) {
      if (expected.codes[i] == got.codes[i]) continue;
      ++shown;
      ADD_FAILURE() << what << ", width " << width << ", row " << i / cols << ", column "
                    << i % cols << ": code " << int{got.codes[i]} << ", expected "
                    << int{expected.codes[i]};
    }
    for (size_t i = 0; i < expected.scales.size() && shown < 8; ++i) {
      const float a = expected.scales[i], b = got.scales[i];
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      ++shown;
      ADD_FAILURE() << what << ", width " << width << ", row " << i << ": scale " << b
                    << ", expected " << a;
    }
  }
  Host defined(const Bf16s& x, size_t rows, size_t width, size_t stride) {
    Host host;
    for (size_t row = 0; row < rows; ++row) {
      const auto one = fp8_reference::quantise(&x[row * stride], static_cast<int64_t>(width));
      host.codes.insert(host.codes.end(), one.codes.begin(), one.codes.end());
      host.scales.push_back(one.scale);
    }
    host.codes.resize(
        host.codes.size() + static_cast<size_t>(fp8_cols(static_cast<int64_t>(width))), 0xff);
    host.scales.push_back(std::numeric_limits<float>::quiet_NaN());
    return host;
  }
  static __nv_bfloat16* bf16(uint16_t* array) { return reinterpret_cast<__nv_bfloat16*>(array); }

  std::mt19937 random_{11};
};

TEST_F(Fp8RowsTest, CodesAndScalesAreTheDefinitions) {
  for (const size_t width : kWidths) {
    for (const size_t rows : {size_t{0}, size_t{1}, size_t{67}}) {
      const size_t stride = width + 16;
      Bf16s x = rounded(floats(rows, stride));
      if (rows > 8) {
        const auto set = [&](size_t row, float value) {
          x[row * stride + width / 2] = reference::float_to_bfloat16(value);
        };
        for (const size_t row : {1u, 2u, 3u}) {
          std::fill_n(x.begin() + static_cast<ptrdiff_t>(row * stride), width, uint16_t{0});
        }
        set(2, 0x1p-101f);  // too small to count
        set(3, -0x1p-100f);
        set(4, std::numeric_limits<float>::infinity());
        set(5, std::numeric_limits<float>::quiet_NaN());
        set(6, -3e38f);
      }
      const Fp8Rows out = make_rows(rows, width);
      quantise_rows(stream(),
                    {.x = bf16(upload(x)),
                     .x_stride = static_cast<int64_t>(stride),
                     .rows = static_cast<int64_t>(rows),
                     .width = static_cast<int64_t>(width)},
                    out);
      expect_equal(defined(x, rows, width, stride), fetch(out, rows, width), "quantise", width);
      if (HasFailure()) return;
      clear();
    }
  }
}

TEST_F(Fp8RowsTest, NormsInCodesAreNormsThenCodes) {
  for (const size_t width : kWidths) {
    const size_t source = width > 8192 ? 40 : 700, rows = source + 1;
    std::vector<int32_t> indices(rows);
    for (int32_t& index : indices) index = static_cast<int32_t>(random_() % source);
    uint16_t* const plain = poisoned<uint16_t>(rows * width);
    const NormArgs args{.in = upload(floats(source, width)),
                        .row_indices = upload(indices),
                        .weight = upload(floats(1, width)),
                        .eps = 1e-5f,
                        .rows = static_cast<int64_t>(rows),
                        .width = static_cast<int64_t>(width),
                        .out = bf16(plain)};
    rms_norm(stream(), args);
    const Fp8Rows out = make_rows(rows, width);
    rms_norm(stream(), args, out);
    expect_equal(defined(download(plain, rows * width), rows, width, width),
                 fetch(out, rows, width), "rms_norm", width);
    if (HasFailure()) return;
    clear();
  }
}

TEST_F(Fp8RowsTest, GatesInCodesAreGatesThenCodes) {
  for (const bool gelu : {false, true}) {
    for (const size_t width : kWidths) {
      for (const size_t rows : {size_t{0}, size_t{1}, size_t{43}}) {
        uint16_t* const plain = poisoned<uint16_t>(rows * width);
        const GateArgs args{.gate_up = bf16(upload(rounded(floats(rows, 2 * width)))),
                            .rows = static_cast<int64_t>(rows),
                            .width = static_cast<int64_t>(width),
                            .gelu = gelu,
                            .out = bf16(plain)};
        gated(stream(), args);
        const Fp8Rows out = make_rows(rows, width);
        gated(stream(), args, out);
        expect_equal(defined(download(plain, rows * width), rows, width, width),
                     fetch(out, rows, width), gelu ? "geglu" : "swiglu", width);
        if (HasFailure()) return;
        clear();
      }
    }
  }
}

}  // namespace
}  // namespace ops::cuda
