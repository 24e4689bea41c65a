// For tests that promise to allocate nothing: an operator new that counts, on every thread of the
// program. Include it in exactly one file of a test program: it defines the global operators.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace base {

// Calls of operator new so far. Only rises; compare two readings.
inline std::atomic<int64_t> num_allocations{0};

}  // namespace base

// Not inlined: gcc would see malloc() and free() through one half of a pair and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  base::num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
