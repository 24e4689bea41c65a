// small_linear for Hopper, K a multiple of 64.
#include "ops/cuda/small_linear_hopper.cuh"

namespace ops::cuda {
namespace {

#define SPILLWAY_D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])

// d (64 outputs x 8 rows a group) += weight * x over 16 columns.
struct Bf16Products {
  static constexpr int kElementBytes = 2;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static constexpr bool kIsCodes = false;
  static __device__ __forceinline__ void multiply(float (&d)[1][4], uint64_t weight, uint64_t x,
                                                  bool) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, "
        "0;"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
        : "l"(weight), "l"(x));
  }

  static __device__ __forceinline__ void multiply(float (&d)[2][4], uint64_t weight, uint64_t x,
                                                  bool) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, "
        "%9, 1, 1, 1, 0, 0;"
        : SPILLWAY_D4(0), SPILLWAY_D4(1)
        : "l"(weight), "l"(x));
  }
  static __device__ __forceinline__ void multiply(float (&d)[4][4], uint64_t weight, uint64_t x,
                                                  bool) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
        "%9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
        : SPILLWAY_D4(0), SPILLWAY_D4(1), SPILLWAY_D4(2), SPILLWAY_D4(3)
        : "l"(weight), "l"(x));
  }
  static __device__ __forceinline__ void multiply(float (&d)[8][4], uint64_t weight, uint64_t x,
                                                  bool) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
        "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
        "%27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
        : SPILLWAY_D4(0), SPILLWAY_D4(1), SPILLWAY_D4(2), SPILLWAY_D4(3), SPILLWAY_D4(4),
          SPILLWAY_D4(5), SPILLWAY_D4(6), SPILLWAY_D4(7)
        : "l"(weight), "l"(x));
  }
#endif
};

#undef SPILLWAY_D4

}  // namespace

void small_linear_hopper(cudaStream_t stream, const SmallLinearParams& p, int num_sms,
                         bool all_sms) {
  small_linear_hopper_detail::launch_rows<Bf16Products>(stream, p, num_sms, all_sms);
}

}  // namespace ops::cuda
