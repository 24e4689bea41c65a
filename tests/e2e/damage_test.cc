// A step reads of every (layer, KV head) the pages that this head selected, and no others: each
// page in turn has its V negated, in device memory or in its home, and the next token's bits change
// for as many pages as the head selects, the first among them; all of it back, they do not. A
// kernel that reads a frame of another head, or a stale one, finds another number of pages. Where
// two pages of a head exchange their statistics, the one is selected for the other.
//
// By itself on each back end; what exactly a head selects is selection_oracle_test's to say.
#include <gtest/gtest.h>

#include <algorithm>

#include "e2e/tiny_host.h"

namespace exec {
namespace {

constexpr int32_t kPrompt = 203;  // the next token is neither the first nor the last of its page
constexpr int32_t kRows = 8;      // of frames, for two selections

class Damage {
 public:
  explicit Damage(bool tiered)
      : host_(model_, 20, tiered ? 40 : 0, tier()), s_(host_.add(0, prompt())) {
    host_.prefill(s_, 48);
  }

  // The token after the prompt, once more; with a host tier from homes, but for the tail.
  Sampled step() {
    if (host_.tiered()) {
      host_.cut(s_, 1);
      host_.grow(s_, kRows);
    }
    host_.decode(s_);
    host_.step();
    EXPECT_EQ(s_.error, "");
    const Sampled sampled = s_.output.back();
    s_.output.pop_back();
    s_.tokens.pop_back();
    s_.computed = kPrompt;
    return sampled;
  }

  // Full pages of the head whose V, negated, changes `expected`.
  std::vector<int32_t> pages_read(int32_t layer, int32_t head, const Sampled& expected) {
    std::vector<int32_t> read;
    const int32_t column = host_.device().columns().column(layer, head);
    for (int32_t page = 0; page < kPrompt / host_.page_tokens(); ++page) {
      const core::BlockId block = s_.blocks[static_cast<size_t>(page)];
      negate(block, column);
      if (!same_bits(step(), expected)) read.push_back(page);
      negate(block, column);
    }
    return read;
  }

  void swap_stats(int32_t layer, int32_t head, int32_t a, int32_t b) {
    host_.device().swap_stats(layer, head, s_.blocks[static_cast<size_t>(a)],
                              s_.blocks[static_cast<size_t>(b)]);
  }

  // Of each head that selects, in the last step.
  int64_t pages_selected() const {
    return host_.result().kv.pages_selected / (TinyModel::kLayers * TinyModel::kKvHeads);
  }
  int64_t pages_missed() const {
    return host_.result().kv.pages_missed / (TinyModel::kLayers * TinyModel::kKvHeads);
  }

 private:
  static std::vector<core::TokenId> prompt() {
    std::mt19937 random(31);
    std::vector<core::TokenId> tokens(kPrompt);
    for (auto& token : tokens) token = static_cast<core::TokenId>(random() % TinyModel::kVocab);
    return tokens;
  }
  static TinyTier tier() {
    TinyTier options;
    options.scratch_frames = 8;
    options.transfers.load = core::LoadMethod::kUva;
    options.transfers.save = core::SaveMethod::kStaged;
    return options;
  }
  // The sign of each V, in BF16.
  void negate(core::BlockId block, int32_t column) {
    const auto negated = [](std::span<std::byte> page) {
      for (size_t i = page.size() / 2 + 1; i < page.size(); i += 2) page[i] ^= std::byte{0x80};
    };
    TinyDevice& device = host_.device();
    if (host_.tiered()) return negated(device.home(block, column));
    std::vector<std::byte> page = device.read_page(block, column);
    negated(page);
    device.write_page(block, column, page);
  }

  TinyModel model_{{}};
  TinyHost host_;
  TinyHost::Sequence& s_;
};

void expect_selected_pages_alone(bool tiered) {
  Damage damage(tiered);
  const Sampled expected = damage.step();
  const int64_t selected = damage.pages_selected();
  ASSERT_EQ(selected, 4);
  EXPECT_EQ(damage.pages_missed(), tiered ? selected - 1 : 0);
  for (int32_t layer = 0; layer < TinyModel::kLayers; ++layer) {
    for (int32_t head = 0; head < TinyModel::kKvHeads; ++head) {
      SCOPED_TRACE(testing::Message() << "layer " << layer << " head " << head);
      const std::vector<int32_t> read = damage.pages_read(layer, head, expected);
      EXPECT_EQ(std::ssize(read), selected - 1) << "beside the tail";
      ASSERT_FALSE(read.empty());
      EXPECT_EQ(read[0], 0) << "the sink";
      EXPECT_TRUE(same_bits(damage.step(), expected)) << "all of it is back";
    }
  }
}

TEST(Damage, OfAPageIsSeenByTheHeadsThatSelectIt) {
  expect_selected_pages_alone(false);
}

TEST(Damage, OfAHomeIsSeenByTheHeadsThatMissIt) {
  expect_selected_pages_alone(true);
}

// Scores change places with the statistics: another page is selected for the one.
TEST(Damage, OfStatisticsIsSeenByTheHeadThatScoresThem) {
  Damage damage(false);
  const Sampled expected = damage.step();
  for (int32_t layer = 0; layer < TinyModel::kLayers; ++layer) {
    for (int32_t head = 0; head < TinyModel::kKvHeads; ++head) {
      SCOPED_TRACE(testing::Message() << "layer " << layer << " head " << head);
      std::vector<int32_t> read = damage.pages_read(layer, head, expected);
      ASSERT_EQ(read.size(), 3u);
      int32_t other = 1;  // none of those
      while (std::ranges::find(read, other) != read.end()) ++other;
      damage.swap_stats(layer, head, read[1], other);
      const Sampled without = damage.step();
      EXPECT_FALSE(same_bits(without, expected));
      const std::vector<int32_t> now = damage.pages_read(layer, head, without);
      damage.swap_stats(layer, head, read[1], other);
      read[1] = other;
      std::ranges::sort(read);
      EXPECT_EQ(now, read);
      EXPECT_TRUE(same_bits(damage.step(), expected)) << "all of it is back";
    }
  }
}

}  // namespace
}  // namespace exec
