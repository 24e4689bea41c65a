// The CUDA wrapper on a real GPU: what was copied there comes back, captured work replays, events
// order streams, and too large an allocation is an error that names it.
#include "device/cuda/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/built_for.h"
#include "device/cuda/memory_count.h"
#include "device/cuda/status.h"

namespace device::cuda {
namespace {

class RuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = find_gpu();
    ASSERT_TRUE(gpu.ok()) << gpu.error().message;
    gpu_ = gpu.value();
    auto stream = Stream::create();
    ASSERT_TRUE(stream.ok());
    stream_ = std::move(stream).value();
  }
  GpuInfo gpu_;
  Stream stream_;
};

TEST_F(RuntimeTest, DescribesTheGpu) {
  EXPECT_GE(gpu_.major, 8);
  EXPECT_GT(gpu_.num_sms, 0);
  EXPECT_GT(gpu_.free_bytes, 0);
  EXPECT_LE(gpu_.free_bytes, gpu_.memory_bytes);
}

// Needs no GPU.
TEST(ChooseGpu, PassesOverThoseThatCannotBeUsed) {
  const auto busy = base::error(base::Code::kInternal, "busy");
  std::vector<base::Result<GpuInfo>> gpus = {busy, GpuInfo{.ordinal = 1, .name = "old", .major = 7},
                                             GpuInfo{.ordinal = 2, .major = 9},
                                             GpuInfo{.ordinal = 3, .major = 8}};
  const auto describe = [&](int ordinal) { return gpus[static_cast<size_t>(ordinal)]; };
  const auto chosen = choose_gpu(4, describe);
  ASSERT_TRUE(chosen.ok()) << chosen.error().message;
  EXPECT_EQ(chosen->ordinal, 2);
  const auto none = choose_gpu(2, describe);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message, "busy") << "not the first one's error";
  std::swap(gpus[0], gpus[1]);
  const auto old = choose_gpu(2, describe);
  ASSERT_FALSE(old.ok());
  EXPECT_THAT(old.error().message, testing::HasSubstr("old has compute capability 7.0"));
}

// Needs no GPU.
TEST(BuiltFor, AGpuWithoutCodeIsAnErrorThatSaysHowToBuild) {
  const GpuInfo l4{.name = "An L4", .major = 8, .minor = 9};
  EXPECT_TRUE(judge_code(l4, cudaSuccess, "90a-real").ok());
  for (cudaError_t status : {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction}) {
    const auto judged = judge_code(l4, status, "90a-real");
    ASSERT_FALSE(judged.ok());
    EXPECT_EQ(judged.error().code, base::Code::kUnsupported);
    EXPECT_EQ(judged.error().message,
              "An L4 is sm_89, and this program was built for sm_90a: build it on this machine "
              "with SPILLWAY_CUDA_ARCHITECTURES=89-real tools/build cuda-release");
  }
  const GpuInfo h100{.name = "An H100", .major = 9};
  const auto two = judge_code(h100, cudaErrorNoKernelImageForDevice, "80-real 89-real");
  ASSERT_FALSE(two.ok());
  EXPECT_THAT(two.error().message, testing::HasSubstr("built for sm_80, sm_89: "));
  EXPECT_THAT(two.error().message, testing::HasSubstr("=90a-real "));
  const auto other = judge_code(l4, cudaErrorECCUncorrectable, "90a-real");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, base::Code::kInternal);
}

TEST_F(RuntimeTest, TheProgramHasCodeForTheGpu) {
  const auto built = check_built_for(gpu_);
  EXPECT_TRUE(built.ok()) << built.error().message;
  check_launch("nothing: the question leaves CUDA no error");
}

TEST_F(RuntimeTest, BytesComeBackThroughCopiesAndRows) {
  auto host = PinnedBuffer::allocate(4096, "a test");
  auto device = Buffer::allocate(8192, "a test");
  ASSERT_TRUE(host.ok() && device.ok());
  auto* bytes = host.value().as<unsigned char>();
  for (int i = 0; i < 4096; ++i) bytes[i] = static_cast<unsigned char>(i * 7);
  // Rows of 64 bytes, apart on the device.
  stream_.copy_rows(device.value().data(), 128, bytes, 64, 64, 64);
  std::vector<unsigned char> back(4096);
  auto returned = PinnedBuffer::allocate(4096, "a test");
  ASSERT_TRUE(returned.ok());
  stream_.copy_rows(returned.value().data(), 64, device.value().data(), 128, 64, 64);
  ASSERT_TRUE(stream_.synchronize().ok());
  EXPECT_EQ(0, memcmp(returned.value().data(), bytes, 4096));
}

TEST_F(RuntimeTest, WhatIsAllocatedOnTheDeviceIsCounted) {
  const int64_t before = device_memory().held();
  {
    Buffer one = Buffer::allocate(1000, "a test").value();
    auto pinned = PinnedBuffer::allocate(4096, "a test");
    EXPECT_EQ(device_memory().held(), before + 1000);
    Buffer other = Buffer::allocate(50, "a test").value();
    one = std::move(other);
    EXPECT_EQ(device_memory().held(), before + 1050) << "moved, not freed";
  }
  EXPECT_FALSE(Buffer::allocate(int64_t{1} << 50, "a test").ok());
  EXPECT_EQ(device_memory().held(), before);
}

TEST_F(RuntimeTest, AGraphReplaysWhatWasCaptured) {
  auto device = Buffer::allocate(4, "a test");
  auto host = PinnedBuffer::allocate(8, "a test");
  ASSERT_TRUE(device.ok() && host.ok());
  int* value = host.value().as<int>();
  auto graph = Graph::capture(stream_, [&] {
    stream_.copy(device.value().data(), value, 4);
    stream_.copy(value + 1, device.value().data(), 4);
  });
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  for (int i : {3, 4}) {
    value[0] = i;
    graph.value().launch(stream_);
    ASSERT_TRUE(stream_.synchronize().ok());
    EXPECT_EQ(value[1], i);
  }
}

// A wait inside of a capture breaks it, as a lack of memory for the graph would.
TEST_F(RuntimeTest, AFailedCaptureEnqueuesNothingAndTheStreamWorksOn) {
  auto host = PinnedBuffer::allocate(8, "a test");
  auto device = Buffer::allocate(4, "a test");
  ASSERT_TRUE(host.ok() && device.ok());
  int* value = host.value().as<int>();
  value[0] = 5;
  value[1] = 6;
  const auto copies = [&] {
    stream_.copy(device.value().data(), value, 4);
    stream_.copy(value + 1, device.value().data(), 4);
  };
  const auto failed = Graph::capture(stream_, [&] {
    copies();
    EXPECT_FALSE(stream_.synchronize().ok());
  });
  ASSERT_FALSE(failed.ok());
  check_launch("nothing: the error is no longer CUDA's last");
  ASSERT_TRUE(stream_.synchronize().ok());
  EXPECT_EQ(value[1], 6);
  copies();
  ASSERT_TRUE(stream_.synchronize().ok());
  EXPECT_EQ(value[1], 5);
  value[0] = 7;
  const auto graph = Graph::capture(stream_, copies);
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  ASSERT_TRUE(graph.value().try_launch(stream_).ok());
  ASSERT_TRUE(stream_.synchronize().ok());
  EXPECT_EQ(value[1], 7);
}

TEST_F(RuntimeTest, TooMuchMemoryIsAnErrorThatNamesIt) {
  auto much = Buffer::allocate(int64_t{1} << 50, "a petabyte");
  ASSERT_FALSE(much.ok());
  EXPECT_THAT(much.error().message, testing::HasSubstr("a petabyte"));
  EXPECT_TRUE(Buffer::allocate(1 << 20, "the next").ok());
}

}  // namespace
}  // namespace device::cuda
