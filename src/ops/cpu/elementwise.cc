// The part of the small ops that no instruction set changes: rows over threads.
#include "ops/elementwise.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/elementwise_kernels.h"

namespace ops {
namespace {

using cpu::ElementwiseKernels;

// Elements for which waking a thread pays: an item of 16k takes 2 to 8 us, about what a wake costs.
// A decode step's rows stay on the calling thread.
constexpr int64_t kItemElements = 16 * 1024;

template <class Fn>
void for_rows(device::Stream& stream, int64_t rows, int64_t row_elements, const Fn& fn) {
  const int64_t item_rows =
      std::max<int64_t>(1, kItemElements / std::max<int64_t>(1, row_elements));
  stream.pool().parallel_for((rows + item_rows - 1) / item_rows, [&](int64_t item, int) {
    for (int64_t row = item * item_rows; row < std::min(rows, (item + 1) * item_rows); ++row)
      fn(row);
  });
}

void run_rms_norm(const ElementwiseKernels& kernels, device::Stream& stream,
                  const RmsNormArgs& args) {
  for_rows(stream, args.rows, args.num_groups * args.width, [&](int64_t row) {
    for (int64_t group = 0; group < args.num_groups; ++group) {
      kernels.rms_norm(args.x + row * args.x_stride + group * args.width, args.weight, args.width,
                       args.eps, args.accumulate,
                       args.y + row * args.y_stride + group * args.width);
    }
  });
}

void run_rope(const ElementwiseKernels& kernels, device::Stream& stream, const RopeArgs& args) {
  const int32_t half = args.head_dim / 2;
  CHECK(args.head_dim % 2 == 0 && half <= 128, "head dim {}", args.head_dim);
  CHECK(std::ssize(args.inverse_frequencies) == half, "{} frequencies",
        args.inverse_frequencies.size());
  CHECK(std::ssize(args.positions) >= args.rows, "{} positions", args.positions.size());
  for_rows(stream, args.rows, int64_t{args.num_heads} * args.head_dim, [&](int64_t row) {
    alignas(64) float cosines[128], sines[128];
    kernels.angles(args.positions[static_cast<size_t>(row)], args.inverse_frequencies.data(), half,
                   args.magnitude, cosines, sines);
    for (int32_t head = 0; head < args.num_heads; ++head) {
      kernels.rotate(cosines, sines, half,
                     args.x + row * args.x_stride + int64_t{head} * args.head_dim);
    }
  });
}

using GatedRow = void (*)(const float* gate, const float* up, int64_t width, float* out);

void run_gated(GatedRow row_fn, device::Stream& stream, const GatedArgs& args) {
  for_rows(stream, args.rows, args.width, [&](int64_t row) {
    row_fn(args.gate + row * args.stride, args.up + row * args.stride, args.width,
           args.out + row * args.out_stride);
  });
}

}  // namespace

namespace avx2 {
void rms_norm(device::Stream& stream, const RmsNormArgs& args) {
  run_rms_norm(cpu::kElementwiseAvx2, stream, args);
}
void rope(device::Stream& stream, const RopeArgs& args) {
  run_rope(cpu::kElementwiseAvx2, stream, args);
}
void swiglu(device::Stream& stream, const GatedArgs& args) {
  run_gated(cpu::kElementwiseAvx2.swiglu, stream, args);
}
void geglu(device::Stream& stream, const GatedArgs& args) {
  run_gated(cpu::kElementwiseAvx2.geglu, stream, args);
}
}  // namespace avx2

namespace avx512 {
void rms_norm(device::Stream& stream, const RmsNormArgs& args) {
  run_rms_norm(cpu::kElementwiseAvx512, stream, args);
}
void rope(device::Stream& stream, const RopeArgs& args) {
  run_rope(cpu::kElementwiseAvx512, stream, args);
}
void swiglu(device::Stream& stream, const GatedArgs& args) {
  run_gated(cpu::kElementwiseAvx512.swiglu, stream, args);
}
void geglu(device::Stream& stream, const GatedArgs& args) {
  run_gated(cpu::kElementwiseAvx512.geglu, stream, args);
}
}  // namespace avx512

}  // namespace ops
