// Every version of the small ops against the reference at odd widths, strides and extreme inputs,
// and the same bits for a row whatever rows and threads are beside it.
#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "device/cpu.h"

namespace ops {
namespace {

struct Version {
  const char* name;
  device::Isa isa;
  RmsNormFn rms_norm;
  RopeFn rope;
  SwiGluFn swiglu;
  GeGluFn geglu;
};

std::vector<Version> versions() {
  std::vector<Version> all = {
      {"avx2", device::Isa::kAvx2, avx2::rms_norm, avx2::rope, avx2::swiglu, avx2::geglu},
      {"avx512", device::Isa::kAvx512, avx512::rms_norm, avx512::rope, avx512::swiglu,
       avx512::geglu}};
  std::erase_if(all, [](const Version& version) { return version.isa > device::detect_isa(); });
  return all;
}

std::vector<float> draw(int64_t count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& element : x) element = normal(random);
  return x;
}

// |actual - expected| <= relative * |expected| + absolute, elementwise.
void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                 float relative, float absolute) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::fabs(actual[i] - expected[i]), relative * std::fabs(expected[i]) + absolute)
        << "element " << i << ": " << actual[i] << " for " << expected[i];
  }
}

class Elementwise : public testing::Test {
 protected:
  base::ThreadPool pool_{2};
  device::Stream stream_{pool_};
};

TEST_F(Elementwise, RmsNormAgreesWithReference) {
  for (int64_t width : {1, 7, 16, 63, 64, 65, 128, 576, 1000, 4099}) {
    for (int64_t groups : {1, 3}) {
      for (float scale : {1e-6f, 1.0f, 1e4f}) {
        const int64_t rows = 5, x_stride = groups * width + 3, y_stride = groups * width + 1;
        const auto x = draw(rows * x_stride, scale, 1), weight = draw(width, 1.0f, 2);
        std::vector<float> expected(static_cast<size_t>(rows * y_stride), -7.0f);
        RmsNormArgs args{.x = x.data(),
                         .x_stride = x_stride,
                         .weight = weight.data(),
                         .eps = 1e-5f,
                         .rows = rows,
                         .num_groups = groups,
                         .width = width,
                         .y = expected.data(),
                         .y_stride = y_stride};
        reference::rms_norm(stream_, args);
        for (const Version& version : versions()) {
          SCOPED_TRACE(testing::Message() << version.name << " width " << width);
          std::vector<float> actual(expected.size(), -7.0f);
          args.y = actual.data();
          version.rms_norm(stream_, args);
          expect_near(actual, expected, 1e-5f, 0.0f);
          args.accumulate = true;  // once more: the doubled norm
          version.rms_norm(stream_, args);
          args.accumulate = false;
          for (int64_t i = 0; i < rows * y_stride; ++i) {
            const bool gap = i % y_stride >= groups * width;
            const float once = expected[static_cast<size_t>(i)];
            const float twice = actual[static_cast<size_t>(i)];
            ASSERT_NEAR(twice, gap ? once : 2 * once, 4e-5f * std::fabs(once)) << i;
          }
        }
      }
    }
  }
}

TEST_F(Elementwise, RopeAgreesWithReference) {
  for (int32_t head_dim : {2, 16, 48, 64, 80, 96, 128, 256}) {
    const int32_t heads = 3;
    const std::vector<int32_t> positions = {0, 1, 2, 1000, 32767, 131071, 1000003};
    std::vector<float> frequencies;
    for (int32_t i = 0; i < head_dim / 2; ++i) {
      frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / head_dim)));
    }
    const int64_t stride = heads * head_dim + 5;
    const auto x = draw(std::ssize(positions) * stride, 1.0f, 3);
    float largest = 0.0f;
    for (float element : x) largest = std::max(largest, std::fabs(element));
    for (float magnitude : {1.0f, 1.3f}) {
      auto expected = x;
      RopeArgs args{.x = expected.data(),
                    .x_stride = stride,
                    .rows = std::ssize(positions),
                    .num_heads = heads,
                    .head_dim = head_dim,
                    .positions = positions,
                    .inverse_frequencies = frequencies,
                    .magnitude = magnitude};
      reference::rope(stream_, args);
      for (const Version& version : versions()) {
        SCOPED_TRACE(testing::Message() << version.name << " D " << head_dim);
        auto actual = x;
        args.x = actual.data();
        version.rope(stream_, args);
        expect_near(actual, expected, 0.0f, 1e-6f * largest);
      }
    }
  }
}

struct Gate {
  const char* name;
  SwiGluFn reference;
  SwiGluFn Version::* fast;
  float absolute;
};

TEST_F(Elementwise, GatesAgreeWithReference) {
  const Gate gates[] = {{"swiglu", reference::swiglu, &Version::swiglu, 1e-43f},
                        {"geglu", reference::geglu, &Version::geglu, 1e-14f}};
  for (const Gate& gate : gates) {
    for (int64_t width : {1, 15, 16, 17, 1536, 2051}) {
      const int64_t rows = 3, stride = width + 2, out_stride = width + 1;
      auto z = draw(rows * stride, 6.0f, 4);
      const float extreme[] = {0.0f,    -0.0f, 88.0f,  -88.0f, -88.7f, -90.0f,
                               -104.0f, 1e30f, -1e30f, 3e38f,  -3e38f, 1e-40f};
      for (size_t i = 0; i < std::size(extreme) && i < z.size(); ++i) z[i] = extreme[i];
      const auto up = draw(rows * stride, 2.0f, 5);
      std::vector<float> expected(static_cast<size_t>(rows * out_stride), -7.0f);
      GatedArgs args{.gate = z.data(),
                     .up = up.data(),
                     .stride = stride,
                     .rows = rows,
                     .width = width,
                     .out = expected.data(),
                     .out_stride = out_stride};
      gate.reference(stream_, args);
      for (float& element : expected) {
        if (std::isinf(element)) element = std::copysign(3.4e38f, element);
      }
      for (const Version& version : versions()) {
        SCOPED_TRACE(testing::Message() << gate.name << " " << version.name << " width " << width);
        std::vector<float> actual(expected.size(), -7.0f);
        args.out = actual.data();
        (version.*gate.fast)(stream_, args);
        for (float& element : actual) {
          if (std::isinf(element)) element = std::copysign(3.4e38f, element);
        }
        expect_near(actual, expected, 1e-5f, gate.absolute);
      }
    }
  }
}

TEST_F(Elementwise, GeGluIsTheTanhFormOfGelu) {
  // gelu_pytorch_tanh of 1, -1 and 3, to ten digits.
  const float gate[] = {1.0f, -1.0f, 3.0f}, up[] = {1.0f, 1.0f, 2.0f};
  float out[3];
  reference::geglu(stream_, {.gate = gate, .up = up, .rows = 1, .width = 3, .out = out});
  EXPECT_NEAR(out[0], 0.8411919906f, 1e-7f);
  EXPECT_NEAR(out[1], -0.1588080094f, 1e-7f);
  EXPECT_NEAR(out[2], 2 * 2.9963627f, 1e-6f);
}

TEST_F(Elementwise, WorkInPlaceAndKeepBitsInAnyTeam) {
  const int64_t rows = 70, width = 577;
  const auto x = draw(rows * width, 1.0f, 6), up = draw(rows * width, 1.0f, 7),
             weight = draw(width, 1.0f, 8);
  for (const Version& version : versions()) {
    SCOPED_TRACE(version.name);
    std::vector<float> norm(x.size()), gated(x.size());
    for (int64_t row = 0; row < rows; ++row) {
      version.rms_norm(stream_, {.x = &x[static_cast<size_t>(row * width)],
                                 .x_stride = width,
                                 .weight = weight.data(),
                                 .rows = 1,
                                 .width = width,
                                 .y = &norm[static_cast<size_t>(row * width)],
                                 .y_stride = width});
      version.swiglu(stream_, {.gate = &x[static_cast<size_t>(row * width)],
                               .up = &up[static_cast<size_t>(row * width)],
                               .stride = width,
                               .rows = 1,
                               .width = width,
                               .out = &gated[static_cast<size_t>(row * width)],
                               .out_stride = width});
    }
    for (int threads : {1, 2, 3}) {
      base::ThreadPool pool(threads);
      device::Stream stream(pool);
      auto in_place = x;
      version.rms_norm(stream, {.x = in_place.data(),
                                .x_stride = width,
                                .weight = weight.data(),
                                .rows = rows,
                                .width = width,
                                .y = in_place.data(),
                                .y_stride = width});
      EXPECT_EQ(std::memcmp(in_place.data(), norm.data(), norm.size() * 4), 0);
      auto ups = up;
      version.swiglu(stream, {.gate = x.data(),
                              .up = ups.data(),
                              .stride = width,
                              .rows = rows,
                              .width = width,
                              .out = ups.data(),
                              .out_stride = width});
      EXPECT_EQ(std::memcmp(ups.data(), gated.data(), gated.size() * 4), 0);
    }
  }
}

}  // namespace
}  // namespace ops
