// The small ops for AVX2.
//
// Compiled with AVX2 flags: includes plain headers only (see ops/cpu/attention_kernels.h).
#include "ops/cpu/elementwise_rows.h"

namespace ops::cpu {
namespace {

struct Vectors {
  static constexpr int kLanes = 8;
  typedef float F __attribute__((vector_size(32)));
  typedef int32_t I __attribute__((vector_size(32)));
  typedef float H __attribute__((vector_size(16)));
  typedef double D __attribute__((vector_size(32)));
  typedef int64_t L __attribute__((vector_size(32)));
};

}  // namespace

const ElementwiseKernels kElementwiseAvx2 = Rows<Vectors>::kernels();

}  // namespace ops::cpu
