// What tests of transfers share: a GPU, a stream, an event on it, and random numbers whose seed is
// reported.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "device/cuda/runtime.h"

namespace store::cuda {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = device::cuda::find_gpu();
    ASSERT_TRUE(gpu.ok()) << gpu.error().message;
    gpu_ = gpu.value();
    stream_ = device::cuda::Stream::create().value();
    ready_ = device::cuda::Event::create().value();
    seed_ = std::random_device()();
    random_.seed(seed_);
    RecordProperty("seed", std::to_string(seed_));
  }

  // The stream stands still for a while, as behind a long step; stalled_us() of it have then
  // passed.
  void stall(std::chrono::microseconds time) {
    stall_ = time;
    const cudaError_t status = cudaLaunchHostFunc(
        stream_.handle(),
        [](void* self) {
          auto* const test = static_cast<GpuTest*>(self);
          const auto begin = std::chrono::steady_clock::now();
          std::this_thread::sleep_for(test->stall_);
          test->stalled_us_ = us_since(begin);
        },
        this);
    ASSERT_EQ(status, cudaSuccess);
  }
  int64_t stalled_us() const { return stalled_us_; }
  static int64_t us_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                 begin)
        .count();
  }

  device::cuda::GpuInfo gpu_;
  device::cuda::Stream stream_;
  device::cuda::Event ready_;
  unsigned seed_ = 0;
  std::mt19937 random_;

 private:
  std::chrono::microseconds stall_{0};
  std::atomic<int64_t> stalled_us_{0};
};

}  // namespace store::cuda
