// The small ops as their definitions read, in double.
#include "ops/elementwise.h"

#include <cmath>
#include <numbers>

namespace ops::reference {

void rms_norm(device::Stream&, const RmsNormArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t group = 0; group < args.num_groups; ++group) {
      const float* x = args.x + row * args.x_stride + group * args.width;
      float* y = args.y + row * args.y_stride + group * args.width;
      double squares = 0.0;
      for (int64_t i = 0; i < args.width; ++i) squares += double{x[i]} * x[i];
      const double scale =
          1.0 / std::sqrt(squares / static_cast<double>(args.width) + double{args.eps});
      for (int64_t i = 0; i < args.width; ++i) {
        const double sum = args.accumulate ? double{y[i]} : 0.0;
        y[i] = static_cast<float>(sum + x[i] * scale * args.weight[i]);
      }
    }
  }
}

void rope(device::Stream&, const RopeArgs& args) {
  const int32_t half = args.head_dim / 2;
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int32_t head = 0; head < args.num_heads; ++head) {
      float* x = args.x + row * args.x_stride + int64_t{head} * args.head_dim;
      for (int32_t i = 0; i < half; ++i) {
        const double angle = double{args.inverse_frequencies[static_cast<size_t>(i)]} *
                             args.positions[static_cast<size_t>(row)];
        const double cosine = std::cos(angle) * double{args.magnitude};
        const double sine = std::sin(angle) * double{args.magnitude};
        const double first = x[i], second = x[i + half];
        x[i] = static_cast<float>(first * cosine - second * sine);
        x[i + half] = static_cast<float>(second * cosine + first * sine);
      }
    }
  }
}

namespace {
template <class Fn>
void gated(const GatedArgs& args, const Fn& fn) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t i = 0; i < args.width; ++i) {
      const double gate = args.gate[row * args.stride + i];
      const double up = args.up[row * args.stride + i];
      args.out[row * args.out_stride + i] = static_cast<float>(fn(gate) * up);
    }
  }
}
}  // namespace

void swiglu(device::Stream&, const GatedArgs& args) {
  gated(args, [](double z) { return z / (1.0 + std::exp(-z)); });
}

void geglu(device::Stream&, const GatedArgs& args) {
  gated(args, [](double z) {
    const double u = std::sqrt(2.0 / std::numbers::pi) * (z + 0.044715 * z * z * z);
    return z / (1.0 + std::exp(-2.0 * u));  // (1 + tanh(u)) / 2, without its cancellation
  });
}

}  // namespace ops::reference
