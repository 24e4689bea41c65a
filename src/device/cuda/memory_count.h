// How much device memory a process holds, and held at most since a mark: counted where it is
// allocated and freed, so that nothing is forgotten which a sum over owners would leave out.
//
// Pure; no CUDA. Thread: any, without locks. Trivially destructible: what static objects free at
// exit is counted to the end.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace device::cuda {

class MemoryCount {
 public:
  // `bytes` were allocated; they were freed.
  void add(int64_t bytes) { raise(held_.fetch_add(bytes) + bytes); }
  void remove(int64_t bytes) { held_.fetch_sub(bytes); }
  // peak() begins anew, with what is held now. In this order: what is added meanwhile is either in
  // held_ already, or raises the peak after it was cleared.
  void mark() {
    peak_ = 0;
    raise(held_);
  }
  int64_t held() const { return held_; }
  int64_t peak() const { return std::max(peak_.load(), held_.load()); }

 private:
  void raise(int64_t held) {
    int64_t peak = peak_;
    while (peak < held && !peak_.compare_exchange_weak(peak, held)) {
    }
  }
  std::atomic<int64_t> held_ = 0, peak_ = 0;
};

// Of every Buffer (runtime.h) of this process, by the bytes asked for.
MemoryCount& device_memory();

}  // namespace device::cuda
