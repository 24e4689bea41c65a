// Arrays of a GPU as tests and benchmarks use them: filled from and read back into vectors, with
// poison where nothing was written yet.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cuda/runtime.h"

namespace ops::cuda {

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(int64_t size) : size_(size) {
    auto buffer = device::cuda::Buffer::allocate(size * static_cast<int64_t>(sizeof(T)) + 16,
                                                 "an array of a test");
    CHECK(buffer.ok(), "{}", buffer.error().message);
    buffer_ = std::move(buffer).value();
    fill(0xff);
  }
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(static_cast<int64_t>(values.size())) {
    set(values);
  }

  T* data() const { return buffer_.as<T>(); }
  int64_t size() const { return size_; }

  void fill(int byte) { check(cudaMemset(data(), byte, static_cast<size_t>(size_) * sizeof(T))); }
  void set(const std::vector<T>& values) {
    CHECK(static_cast<int64_t>(values.size()) <= size_);
    check(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> get() const { return get(0, size_); }
  std::vector<T> get(int64_t begin, int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    check(cudaMemcpy(values.data(), data() + begin, values.size() * sizeof(T),
                     cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  static void check(cudaError_t status) {
    CHECK(status == cudaSuccess, "{}", cudaGetErrorString(status));
  }
  device::cuda::Buffer buffer_;
  int64_t size_ = 0;
};

}  // namespace ops::cuda
