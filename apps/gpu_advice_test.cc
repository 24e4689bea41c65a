// Goal: advice on a GPU's memory names a size that holds pages, or says that there is none; a GPU
// that is not used is named. Method: by hand.
#include "apps/gpu_advice.h"

#include <gtest/gtest.h>

namespace apps {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(GpuAdvice, NamesASizeThatIsThereAndHoldsPages) {
  EXPECT_EQ(advise_device_memory(1600 * kMiB, 1200 * kMiB + 5, 100 * kMiB),
            "of 1.56 GiB for KV and workspace, --device-memory 1200MiB takes less");
  EXPECT_EQ(advise_device_memory(1600 * kMiB, 4000 * kMiB, 100 * kMiB),
            "of 1.56 GiB for KV and workspace, --device-memory 1500MiB takes less")
      << "what was planned is not to be had, whatever is free";
}

TEST(GpuAdvice, NamesNoSizeThatHoldsNone) {
  const char* const none = "no --device-memory is small enough";
  for (const int64_t left : {-500 * kMiB, int64_t{0}, 100 * kMiB}) {
    const std::string advice = advise_device_memory(1600 * kMiB, left, 100 * kMiB);
    EXPECT_NE(advice.find(none), std::string::npos) << advice;
    EXPECT_EQ(advice.find("MiB takes less"), std::string::npos) << advice;
  }
}

TEST(GpuAdvice, SpeaksOfAGpuThatIsNotUsedWhereThereIsOne) {
  EXPECT_EQ(advise_unused_gpu("/no/such/file"), "");
  EXPECT_NE(advise_unused_gpu("/dev/null").find("tools/build cuda-release"), std::string::npos);
}

}  // namespace
}  // namespace apps
