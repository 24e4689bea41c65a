#include "ops/attention_world.h"

#include <cstdlib>
#include <new>

namespace ops {
std::atomic<int64_t> num_allocations{0};
}

// Not inlined: the compiler would see new's memory freed by free().
[[gnu::noinline]] void* operator new(size_t bytes) {
  ops::num_allocations.fetch_add(1, std::memory_order_relaxed);
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
