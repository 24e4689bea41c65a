// Instructions of the GPU that C++ has no word for, one function each: barriers of the copy engine,
// bulk and tensor copies, asynchronous copies of sm_80, matrix instructions of sm_80 (mma.sync) and
// of Hopper (wgmma).
//
// Nothing here decides anything; who uses a function of sm_90a guards the kernel with
// __CUDA_ARCH_FEAT_SM90_ALL. Addresses "of shared memory" are 32-bit, from shared_address().
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

namespace ops::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// True in one lane of a converged warp, always the same one.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(elected));
  return elected != 0;
}

// --- Barriers -----------------------------------------------------------------------------------

// A named barrier among `threads` of the block: sync waits, arrive only counts. 0 is
// __syncthreads'.
__device__ __forceinline__ void named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// An mbarrier (8 bytes of shared memory) flips its phase after `count` arrivals and the bytes that
// they announced. Waiting for parity 0 is waiting for the first flip; for parity 1, a fresh barrier
// lets through.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Makes initialised barriers visible to the copy engine; __syncthreads() makes them so to threads.
__device__ __forceinline__ void fence_barrier_init() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#endif
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

// Orders this thread's ordinary writes of shared memory before later reads by the copy engine and
// by wgmma.
__device__ __forceinline__ void fence_proxy_async() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Adds after everything that this thread knows of has become visible to the GPU; returns what was
// there. Unlike __threadfence() it leaves the L1 as it is.
__device__ __forceinline__ int32_t atomic_add_release(int32_t* at, int32_t value) {
  int32_t before;
  asm volatile("atom.add.release.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(at), "r"(value)
               : "memory");
  return before;
}

// --- Copies -------------------------------------------------------------------------------------

// sm_80: 16 bytes, past the L1; of which the first `bytes` are read and the rest are zeros.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// 8 bytes, or zeros.
__device__ __forceinline__ void cp_async_8(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 8 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// The thread's arrival at `barrier` once all its copies so far are done; one of the barrier's
// count.
__device__ __forceinline__ void cp_async_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// The same beyond the barrier's count: before the last of that arrives.
__device__ __forceinline__ void cp_async_arrive_extra(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// sm_90: `bytes` (a multiple of 16, both ends aligned to 16) to shared memory, counted at
// `barrier`. Global memory may be pinned host memory.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// From shared memory, in a group of this thread's; fence_proxy_async() after writing the source.
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// At most kPending groups have not yet read their source.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// At most kPending groups have not yet written all they will.
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// The box of a 2D tensor whose first element is (x, y), x the fast axis.
__device__ __forceinline__ void tensor_load_2d(uint32_t to, const CUtensorMap* map, int32_t x,
                                               int32_t y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

// The same of a 3D tensor.
__device__ __forceinline__ void tensor_load_3d(uint32_t to, const CUtensorMap* map, int32_t x,
                                               int32_t y, int32_t z, uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
#endif
}

// The same of a 4D tensor.
__device__ __forceinline__ void tensor_load_4d(uint32_t to, const CUtensorMap* map, int32_t x,
                                               int32_t y, int32_t z, int32_t w, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}

// The same of a 5D tensor: the box at (0, y, 0, 0, w).
__device__ __forceinline__ void tensor_load_5d(uint32_t to, const CUtensorMap* map, int32_t y,
                                               int32_t w, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%4, %2, %4, %4, %3}], [%5];" ::"r"(to),
      "l"(map), "r"(y), "r"(w), "r"(0), "r"(barrier)
      : "memory");
}

// --- Registers and arithmetic -------------------------------------------------------------------

// sm_90a: what each thread of the warpgroup may hold from here on; a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void registers_up_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_down_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// 2^x within 2 ulp; 0 for minus infinity, subnormal results are 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to BF16, `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// --- Matrix instructions of sm_80 ---------------------------------------------------------------

// Four 8x8 tiles of 16-bit elements; lane i gives the address of row i % 8 of tile i / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// An 8x8 tile of 16-bit elements, one register a lane (row lane / 4, columns 2 (lane % 4) and the
// next), transposed.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t tile) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(tile));
  return transposed;
}

// d += a * b, a 16x16 (rows by k), b 16x8 (k by columns). With g = lane / 4 and t = lane % 4:
// d[0..1] row g, d[2..3] row g + 8, columns 2t, 2t + 1; a[0] row g, a[1] row g + 8, k 2t, 2t + 1;
// a[2], a[3] the same at k + 8; b0 k 2t, 2t + 1 of column g; b1 the same at k + 8.
__device__ __forceinline__ void mma_16x8x16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of F16.
__device__ __forceinline__ void mma_16x8x16_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- Matrix instructions of Hopper --------------------------------------------------------------

// Describes an operand in shared memory in rows of 128 bytes, swizzled as the copy engine's
// SWIZZLE_128B leaves them (address bits 4-6 XOR 7-9), eight rows every `group_bytes`.
//   K fastest (a, or b as [n][k]): group_bytes = 1024, next 16 of k 32 bytes on; block_bytes
//   unused. n fastest (b as [k][n]): 64 of n in a row, the next 64 block_bytes on; 16 of k are two
//   groups.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t address, uint32_t group_bytes,
                                                  uint32_t block_bytes) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{block_bytes >> 4} << 16 |
         uint64_t{group_bytes >> 4} << 32 | uint64_t{1} << 62;
}

// Before the first wgmma, and before one whose registers were written by other instructions.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of accumulators across a fence or a wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void pin(uint32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Sixteen accumulators from i on, as operands.
#define SPILLWAY_D16(i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]),        \
      "+f"(d[i + 11]), "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define SPILLWAY_D0_31                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPILLWAY_D32_63                                                                   \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define SPILLWAY_D64_127                                                           \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, "    \
  "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, "    \
  "%94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, " \
  "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, " \
  "%121, %122, %123, %124, %125, %126, %127"

// d (64 x n, n = 2 * the number of d) = a * b (+ d if `add`), over 16 of k; a and b in shared
// memory with k fastest. Thread t of the warpgroup holds rows 16 * (t / 32) + g and g + 8, d[4 j
// ..] columns 8 j + 2 (t % 4) and the next, as mma.sync's.
__device__ __forceinline__ void wgmma_k16(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SPILLWAY_D0_31 ", " SPILLWAY_D32_63
      "}, %64, %65, p, 1, 1, 0, 0;\n}"
      : SPILLWAY_D16(0), SPILLWAY_D16(16), SPILLWAY_D16(32), SPILLWAY_D16(48)
      : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma_k16(float (&d)[32], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SPILLWAY_D0_31
      "}, %32, %33, p, 1, 1, 0, 0;\n}"
      : SPILLWAY_D16(0), SPILLWAY_D16(16)
      : "l"(a), "l"(b), "r"(add));
}
// The same with a in registers as mma.sync's (the warp's 16 rows).
__device__ __forceinline__ void wgmma_k16(float (&d)[64], const uint32_t (&a)[4], uint64_t b,
                                          int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SPILLWAY_D0_31 ", " SPILLWAY_D32_63
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
      : SPILLWAY_D16(0), SPILLWAY_D16(16), SPILLWAY_D16(32), SPILLWAY_D16(48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// d += a * b; a in registers as mma.sync's (the warp's 16 rows), b in shared memory, n fastest.
__device__ __forceinline__ void wgmma_k16_n_fastest(float (&d)[64], const uint32_t (&a)[4],
                                                    uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SPILLWAY_D0_31 ", " SPILLWAY_D32_63
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
      : SPILLWAY_D16(0), SPILLWAY_D16(16), SPILLWAY_D16(32), SPILLWAY_D16(48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_k16_n_fastest(float (&d)[32], const uint32_t (&a)[4],
                                                    uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SPILLWAY_D0_31
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
      : SPILLWAY_D16(0), SPILLWAY_D16(16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_k16_n_fastest(float (&d)[128], const uint32_t (&a)[4],
                                                    uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SPILLWAY_D0_31 ", " SPILLWAY_D32_63
      ", " SPILLWAY_D64_127 "}, {%128, %129, %130, %131}, %132, p, 1, 1, 1;\n}"
      : SPILLWAY_D16(0), SPILLWAY_D16(16), SPILLWAY_D16(32), SPILLWAY_D16(48), SPILLWAY_D16(64),
        SPILLWAY_D16(80), SPILLWAY_D16(96), SPILLWAY_D16(112)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef SPILLWAY_D16
#undef SPILLWAY_D0_31
#undef SPILLWAY_D32_63
#undef SPILLWAY_D64_127

}  // namespace ops::cuda::ptx
