// Loops over registers: unroll<N>(fn) calls fn(0) to fn(N - 1), each index a compile-time constant.
//
// An array that is only indexed by constants before GCC's scalar replacement runs becomes
// registers; one indexed in a loop that a pragma unrolls later stays in memory and is stored in
// every pass. fn must be a lambda marked UNROLLED. The rule of ops/cpu/panel.h holds: anonymous
// namespace.
#pragma once

#include <type_traits>
#include <utility>

#define UNROLLED __attribute__((always_inline))

namespace ops::cpu {
namespace {

template <class Fn, int... kIndex>
UNROLLED inline void unroll_over(Fn& fn, std::integer_sequence<int, kIndex...>) {
  (fn(std::integral_constant<int, kIndex>{}), ...);
}

template <int kCount, class Fn>
UNROLLED inline void unroll(Fn&& fn) {
  unroll_over(fn, std::make_integer_sequence<int, kCount>{});
}

}  // namespace
}  // namespace ops::cpu
