// What tests of transfers share: a GPU, a stream, an event on it, and random numbers whose seed is
// reported.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>

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

  device::cuda::GpuInfo gpu_;
  device::cuda::Stream stream_;
  device::cuda::Event ready_;
  unsigned seed_ = 0;
  std::mt19937 random_;
};

}  // namespace store::cuda
