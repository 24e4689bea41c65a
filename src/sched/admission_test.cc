// Goal: rows of frames that sequences need, at the borders of the arithmetic. Method: sizes by
// hand; the longest prompt against trying every length.
#include "sched/admission.h"

#include <gtest/gtest.h>

namespace sched {
namespace {

// Three layers of two columns.
TierSizes sizes(int32_t num_frames, core::Prefill prefill = core::Prefill::kLayer) {
  return {.num_frames = num_frames,
          .num_columns = 6,
          .layer_columns_max = 2,
          .activation_pages = 100,
          .prefill = prefill};
}

TEST(Admission, ADecodeNeedsItsWorkingSetOrOneSelectionAndItsTail) {
  const core::AttentionPolicy sparse{core::AttentionPolicy::Kind::kSparse, 64};
  const int32_t selection = selection_pages(sparse, 16);
  EXPECT_EQ(selection, 4);
  EXPECT_EQ(decode_rows(100, selection, 0), 5);
  EXPECT_EQ(decode_rows(100, selection, 9), 10);
  EXPECT_EQ(decode_rows(100, selection, 2), 5);
  EXPECT_EQ(decode_rows(3, selection, 0), 3) << "no more than it has";
  EXPECT_EQ(decode_rows(100, selection_pages({}, 16), 0), 100) << "without selection all pages";
}

TEST(Admission, TwoLayerBuffersHoldTheWidestLayerTwice) {
  EXPECT_EQ(layer_buffer_rows(9, sizes(100)), 6);
  EXPECT_EQ(layer_buffer_rows(10, sizes(100)), 8);
  TierSizes none = sizes(100);
  none.num_columns = 0;
  EXPECT_EQ(layer_buffer_rows(10, none), 0);
}

TEST(Admission, APromptIsResidentWhileItTakesNothingFromOthers) {
  const PrefillDemand demand{.pages = 30, .pages_cached = 10, .pages_in_rows = 4};
  PrefillRows rows = prefill_rows(demand, sizes(100), 26);
  EXPECT_TRUE(rows.resident);
  EXPECT_EQ(rows.own, 20);
  EXPECT_EQ(rows.shared, 6);
  rows = prefill_rows(demand, sizes(100), 25);
  EXPECT_FALSE(rows.resident);
  EXPECT_EQ(rows.own, 1);
  EXPECT_EQ(rows.buffers, 20) << "cached pages pass through the buffers too";
  EXPECT_EQ(rows.activations, 20);
  EXPECT_TRUE(prefill_rows(demand, sizes(100, core::Prefill::kChunked), 0).resident);
}

TEST(Admission, APromptIsResidentWhenBuffersWouldBeLarger) {
  TierSizes one_layer = sizes(100);
  one_layer.num_columns = 2;
  EXPECT_TRUE(prefill_rows({.pages = 30}, one_layer, 0).resident);
}

TEST(Admission, TheLongestPromptIsFound) {
  for (const core::Prefill prefill : {core::Prefill::kLayer, core::Prefill::kChunked}) {
    for (const int32_t activations : {3, 100}) {
      TierSizes tier = sizes(9, prefill);
      tier.activation_pages = activations;
      int32_t longest = 0;
      for (int32_t tokens = 1; tokens <= 100; ++tokens) {
        const PrefillRows rows = prefill_rows({.pages = (tokens + 3) / 4}, tier, 9);
        if (rows.rows() <= 9 && rows.activations <= activations) longest = tokens;
      }
      EXPECT_EQ(prompt_tokens_max(tier, 4, 100), longest);
    }
  }
  EXPECT_EQ(prompt_tokens_max(sizes(9), 4, 100), 48)
      << "four rows for each buffer, one for the tail";
  EXPECT_EQ(prompt_tokens_max(sizes(9, core::Prefill::kChunked), 4, 100), 36);
  EXPECT_EQ(prompt_tokens_max({}, 4, 100), 100) << "without a host tier blocks decide";
}

}  // namespace
}  // namespace sched
