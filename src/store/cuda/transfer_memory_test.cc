// What transfers hold of the device's memory by method: nothing without a list or a stage, a part
// and its list where saves are packed, two halves where loads are collected.
#include "store/cuda/transfer_memory.h"

#include <gtest/gtest.h>

#include "store/cuda/copy_runs.h"

namespace store::cuda {
namespace {

using core::LoadMethod;
using core::SaveMethod;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kRing = 256 * kMiB;  // of pinned memory
constexpr int64_t kList = kSavePartRuns * int64_t{sizeof(PlacedRun)};

TEST(TransferMemory, MethodsOfTheCopyEngineHoldNothing) {
  for (const auto load : {LoadMethod::kMemcpy, LoadMethod::kBatched, LoadMethod::kUva,
                          LoadMethod::kUvaPage, LoadMethod::kBulk, LoadMethod::kAuto}) {
    for (const auto save : {SaveMethod::kMemcpy, SaveMethod::kExtents}) {
      EXPECT_EQ(transfer_bytes(load, save, kRing, 0), 0);
    }
  }
}

TEST(TransferMemory, StagesHoldPartsAndHalves) {
  EXPECT_EQ(transfer_bytes(LoadMethod::kBulk, SaveMethod::kStaged, kRing, 0), 16 * kMiB + kList);
  EXPECT_EQ(transfer_bytes(LoadMethod::kBulk, SaveMethod::kGpuDirect, kRing, 0), kList);
  EXPECT_EQ(transfer_bytes(LoadMethod::kStaged, SaveMethod::kExtents, kRing, 0),
            32 * kMiB + 2 * kLoadHalfRuns * int64_t{sizeof(PlacedRun)});
  EXPECT_EQ(kList, kMiB / 4);
  // Two parts go into a small ring.
  EXPECT_EQ(transfer_bytes(LoadMethod::kUva, SaveMethod::kStaged, 8 * kMiB, 0), 4 * kMiB + kList);
}

TEST(TransferMemory, RowsArePackedWhereverPagesAre) {
  EXPECT_EQ(transfer_bytes(LoadMethod::kUva, SaveMethod::kExtents, kRing, 3 * kMiB), 3 * kMiB);
  EXPECT_EQ(transfer_bytes(LoadMethod::kUva, SaveMethod::kStaged, kRing, 3 * kMiB),
            16 * kMiB + kList);
  EXPECT_EQ(transfer_bytes(LoadMethod::kUva, SaveMethod::kStaged, kRing, 20 * kMiB),
            20 * kMiB + kList);
}

TEST(TransferMemory, WhatIsStillToBeChosenTakesTheMost) {
  for (const int64_t rows : {int64_t{0}, 20 * kMiB}) {
    const int64_t chosen = transfer_bytes(LoadMethod::kAuto, SaveMethod::kAuto, kRing, rows);
    for (const auto save :
         {SaveMethod::kExtents, SaveMethod::kStaged, SaveMethod::kGpuDirect, SaveMethod::kMemcpy}) {
      EXPECT_GE(chosen, transfer_bytes(LoadMethod::kBulk, save, kRing, rows));
    }
  }
}

}  // namespace
}  // namespace store::cuda
