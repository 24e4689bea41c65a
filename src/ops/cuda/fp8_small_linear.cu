// Few rows times codes on Hopper.
#include "ops/cuda/fp8_linear.h"
#include "ops/cuda/small_linear_hopper.cuh"

namespace ops::cuda {
namespace {

#define SPILLWAY_D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])

// d (64 outputs x 8 rows a group) (+)= weight * x over 32 columns. The unit cuts each product off
// some 13 bits below the largest of them and of the sum.
struct E4m3Products {
  static constexpr int kElementBytes = 1;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static constexpr bool kIsCodes = true;
  static __device__ __forceinline__ void multiply(float (&d)[1][4], uint64_t weight, uint64_t x,
                                                  bool adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, p, 1, 1;\n}"
        : SPILLWAY_D4(0)
        : "l"(weight), "l"(x), "r"(int{adds}));
  }
  static __device__ __forceinline__ void multiply(float (&d)[2][4], uint64_t weight, uint64_t x,
                                                  bool adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, p, 1, 1;\n}"
        : SPILLWAY_D4(0), SPILLWAY_D4(1)
        : "l"(weight), "l"(x), "r"(int{adds}));
  }
  static __device__ __forceinline__ void multiply(float (&d)[4][4], uint64_t weight, uint64_t x,
                                                  bool adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1;\n}"
        : SPILLWAY_D4(0), SPILLWAY_D4(1), SPILLWAY_D4(2), SPILLWAY_D4(3)
        : "l"(weight), "l"(x), "r"(int{adds}));
  }
  static __device__ __forceinline__ void multiply(float (&d)[8][4], uint64_t weight, uint64_t x,
                                                  bool adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
        "%26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1;\n}"
        : SPILLWAY_D4(0), SPILLWAY_D4(1), SPILLWAY_D4(2), SPILLWAY_D4(3), SPILLWAY_D4(4),
          SPILLWAY_D4(5), SPILLWAY_D4(6), SPILLWAY_D4(7)
        : "l"(weight), "l"(x), "r"(int{adds}));
  }
#endif
};

#undef SPILLWAY_D4

}  // namespace

void fp8_small_linear(cudaStream_t stream, const Fp8LinearArgs& args, int num_sms) {
  if (args.rows == 0 || args.n() == 0) return;
  CHECK(args.rows <= kFp8SmallRowsMax && launch_limits().major == 9, "{} rows", args.rows);
  CHECK((reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.weight.data)) %
            16 ==
        0);
  SmallLinearParams params;
  params.x = args.x;
  params.x_stride = args.k();
  params.weight = args.weight.data;
  params.x_scales = args.x_scales;
  params.weight_scales = args.weight_scales();
  params.bias = args.bias;
  params.m = static_cast<int32_t>(args.rows);
  params.n = static_cast<int32_t>(args.n());
  params.k = static_cast<int32_t>(args.k());
  params.y = args.y;
  params.y32 = args.y32;
  params.y_stride = args.y_stride;
  params.accumulate = args.accumulate;
  small_linear_hopper_detail::launch_rows<E4m3Products>(stream, params, num_sms,
                                                        num_sms >= launch_limits().num_sms);
}

}  // namespace ops::cuda
