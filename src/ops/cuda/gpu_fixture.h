// What tests of kernels share: a GPU and a stream, arrays that go there and come back, and bytes
// around outputs that must stay as they were.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "device/cuda/runtime.h"

namespace ops::cuda {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = device::cuda::find_gpu();
    ASSERT_TRUE(gpu.ok()) << gpu.error().message;
    gpu_ = gpu.value();
    auto stream = device::cuda::Stream::create();
    ASSERT_TRUE(stream.ok());
    stream_ = std::move(stream).value();
  }

  // A copy on the device, which lives as long as the test does or until clear().
  template <typename T>
  T* upload(const std::vector<T>& values) {
    T* array = poisoned<T>(values.size());
    stream_.copy(array, values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
    synchronize();  // `values` may be a temporary
    return array;
  }
  // All bytes 0xff: NaN in every float type.
  template <typename T>
  T* poisoned(size_t count) {
    const auto bytes = static_cast<int64_t>(count * sizeof(T)) + 16;
    auto buffer = device::cuda::Buffer::allocate(bytes, "a test");
    if (!buffer.ok()) ADD_FAILURE() << buffer.error().message;
    buffers_.push_back(std::move(buffer).value());
    stream_.fill(buffers_.back().data(), 0xff, bytes);
    return buffers_.back().as<T>();
  }
  template <typename T>
  std::vector<T> download(const T* array, size_t count) {
    std::vector<T> values(count);
    stream_.copy(values.data(), array, static_cast<int64_t>(count * sizeof(T)));
    synchronize();
    return values;
  }
  void synchronize() {
    const auto done = stream_.synchronize();
    ASSERT_TRUE(done.ok()) << done.error().message;
  }
  void clear() {
    synchronize();
    buffers_.clear();
  }
  cudaStream_t stream() const { return stream_.handle(); }

  device::cuda::GpuInfo gpu_;
  device::cuda::Stream stream_;

 private:
  std::vector<device::cuda::Buffer> buffers_;
};

}  // namespace ops::cuda
