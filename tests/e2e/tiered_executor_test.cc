// Tiered == resident == chunked, bit for bit: the same small model run by an executor that keeps
// everything and by one whose device tier is far too small, through cuts, growth, shared rows,
// layer buffers, slow and failing transfers. Frames that are cut and homes that are freed are NaN.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "e2e/tiny_host.h"

namespace exec {
namespace {

std::vector<core::TokenId> prompt_of(int32_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<core::TokenId> tokens;
  for (int32_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<core::TokenId>(random() % TinyModel::kVocab));
  }
  return tokens;
}

// What an executor without a host tier gives for the prompt and `count` more tokens.
std::vector<Sampled> resident_run(TinyModel& model, const std::vector<core::TokenId>& prompt,
                                  int32_t count) {
  TinyHost host(model, 64, 0);
  TinyHost::Sequence& s = host.add(0, prompt);
  host.prefill(s, 48);
  host.run(s, count);
  return s.output;
}

void expect_same(const std::vector<Sampled>& want, const std::vector<Sampled>& got) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(same_bits(want[i], got[i]))
        << "token " << i << ": " << want[i].token << " and " << got[i].token;
  }
}

TinyTier tier(core::LoadMethod load = core::LoadMethod::kUva,
              core::SaveMethod save = core::SaveMethod::kStaged) {
  TinyTier options;
  options.scratch_frames = 8;
  options.transfers.load = load;
  options.transfers.save = save;
  return options;
}

constexpr int32_t kSelection = 4;  // pages: 64 tokens of 16

TEST(Tiered, ResidentWithRoomIsTheSame) {
  TinyModel model({});
  const auto prompt = prompt_of(200, 1);
  const auto want = resident_run(model, prompt, 40);
  TinyHost host(model, 64, 40, tier());
  TinyHost::Sequence& s = host.add(0, prompt);
  host.prefill(s, 48);
  host.run(s, 40);
  expect_same(want, s.output);
  EXPECT_EQ(host.totals().pages_missed, 0);
  EXPECT_EQ(host.totals().pages_loaded, 0);
  host.end(s, true);
  host.step();
  EXPECT_EQ(host.totals().pages_saved, 240 / 16 * TinyModel::kLayers * TinyModel::kKvHeads);
}

// Two sequences, frames for two selections each, cut and grown at random. Returns the counters of
// steps that were replayed.
core::KvCounters run_tiered(const TinyShape& shape, const TinyTier& options, bool grow_to_one) {
  TinyModel model(shape);
  const auto prompt_a = prompt_of(300, 2), prompt_b = prompt_of(150, 3);
  const auto want_a = resident_run(model, prompt_a, 200);
  const auto want_b = resident_run(model, prompt_b, 200);
  TinyHost host(model, 80, 30, options);
  TinyHost::Sequence& a = host.add(1, prompt_a);
  TinyHost::Sequence& b = host.add(0, prompt_b);
  host.prefill(a, 48);
  host.cut(a, 2 * kSelection);
  host.prefill(b, 64);
  host.cut(b, 2 * kSelection);
  std::mt19937 random(4);
  for (int step = 0; step < 200; ++step) {
    for (TinyHost::Sequence* s : {&a, &b}) {
      if (random() % 8 == 0) {
        const int32_t least = grow_to_one ? 1 : kSelection;
        const auto keep = least + static_cast<int32_t>(random() % 8);
        if (keep < std::ssize(s->frames)) host.cut(*s, keep);
      }
      if (random() % 6 == 0) host.grow(*s, static_cast<int32_t>(random() % 3));
      host.decode(*s);
    }
    host.step();
  }
  expect_same(want_a, a.output);
  expect_same(want_b, b.output);
  EXPECT_EQ(a.error, "");
  EXPECT_GT(host.totals().pages_missed, 100);
  EXPECT_GT(host.totals().pages_evicted, 100);
  EXPECT_GE(host.totals().pages_loaded, host.totals().pages_missed);
  EXPECT_GT(host.totals().bytes_gathered, 0);
  return host.replayed();
}

TEST(Tiered, FramesForTwoSelections) {
  [[maybe_unused]] const core::KvCounters replayed = run_tiered({}, tier(), false);
#ifdef TINY_CUDA  // graphs gather, evict and save as launches one by one do
  EXPECT_GT(replayed.steps_replayed, 100);
  EXPECT_GT(replayed.pages_missed, 50);
  EXPECT_GT(replayed.bytes_gathered, 0);
  EXPECT_GT(replayed.load_us, 0);
  EXPECT_GT(replayed.pages_evicted, 0);
  EXPECT_GT(replayed.pages_saved, 0);
#endif
}
TEST(Tiered, FramesBelowOneSelectionUseScratch) {
  run_tiered({}, tier(), true);
}
TEST(Tiered, ReusedSelections) {
  run_tiered({.reuse_interval = 4}, tier(), false);
}
TEST(Tiered, OneRowOfScratchAtATime) {
  TinyTier options = tier();
  options.scratch_frames = 2 * kSelection;
  run_tiered({}, options, true);
}
TEST(Tiered, CopiedPageByPage) {
  run_tiered({}, tier(core::LoadMethod::kMemcpy, core::SaveMethod::kMemcpy), false);
}
TEST(Tiered, ScatteredInTheStep) {
  run_tiered({}, tier(core::LoadMethod::kBatched, core::SaveMethod::kGpuDirect), false);
}
TEST(Tiered, SlowSaves) {
  TinyTier options = tier(core::LoadMethod::kUva, core::SaveMethod::kMemcpy);
  options.transfers.fault = slow_saves(16);
  run_tiered({}, options, true);
}

TEST(Tiered, DenseFirstLayers) {
  for (const int32_t dense_layers : {1, 2}) {
    TinyTier options = tier();
    options.scratch_frames = 80;  // all pages of a layer
    run_tiered({.dense_layers = dense_layers}, options, true);
  }
  // Room for both sequences at once.
  TinyTier options = tier();
  options.scratch_frames = 200;
  run_tiered({.reuse_interval = 4, .dense_layers = 1}, options, false);
}

// Dense layers and rows within their budget choose nothing: what the device lacks is loaded for
// them and counts neither as selected nor as missed.
TEST(Tiered, PagesThatNobodySelectedAreNotMissed) {
  for (const int32_t dense_layers : {0, 2}) {
    TinyModel model({.dense_layers = dense_layers});
    const auto prompt = prompt_of(40, 29);
    const auto want = resident_run(model, prompt, 60);
    TinyTier options = tier();
    options.scratch_frames = 80;
    TinyHost host(model, 64, 30, options);
    TinyHost::Sequence& s = host.add(0, prompt);
    host.prefill(s, 48);
    host.cut(s, 2);
    host.run(s, 16);  // up to position 55, of 64 within the budget
    EXPECT_EQ(host.totals().pages_selected, 0);
    EXPECT_EQ(host.totals().pages_missed, 0);
    const int64_t within = host.totals().pages_loaded;
    EXPECT_GT(within, 0);
    host.run(s, 44);
    expect_same(want, s.output);
    EXPECT_GT(host.totals().pages_missed, 0);
    if (dense_layers == 0) continue;
    EXPECT_GT(host.totals().pages_loaded - within, host.totals().pages_missed);
  }
}

// Two thirds of the heads stream, one of them in a layer without any other.
core::HeadKinds streaming_heads() {
  const core::HeadKind streaming{.sink = 10, .local = 40}, retrieval{};
  return {.num_layers = 3,
          .num_kv_heads = 2,
          .kinds = {streaming, retrieval, streaming, streaming, retrieval, streaming}};
}

TEST(Tiered, StreamingHeads) {
  run_tiered({.heads = streaming_heads()}, tier(), true);
}
TEST(Tiered, DenseFirstLayersWithStreamingHeads) {
  TinyTier options = tier();
  options.scratch_frames = 80;
  run_tiered({.dense_layers = 1, .heads = streaming_heads()}, options, true);
}
TEST(Tiered, DenseFirstLayersOfQuantisedPages) {
  TinyTier options = tier();
  options.scratch_frames = 80;
  run_tiered({.dense_layers = 1, .kv_type = core::DType::kI8}, options, true);
}

TEST(Tiered, QuantisedPages) {
  run_tiered({.kv_type = core::DType::kI8}, tier(), false);
  run_tiered({.reuse_interval = 4, .kv_type = core::DType::kF8E4M3}, tier(), true);
}
TEST(Tiered, QuantisedPagesOfStreamingHeads) {
  run_tiered({.heads = streaming_heads(), .kv_type = core::DType::kI8}, tier(), true);
}

// A row reads its own page as it was written, whatever else is in its step.
TEST(QuantisedPages, AreTheSameInChunksOfAnySize) {
  for (const core::HeadKinds& heads : {core::HeadKinds{}, streaming_heads()}) {
    for (const core::DType type : {core::DType::kI8, core::DType::kF8E4M3}) {
      TinyModel model({.heads = heads, .kv_type = type});
      const auto prompt = prompt_of(203, 21);
      const auto want = resident_run(model, prompt, 40);
      for (const int32_t chunk : {1, 7, 16, 33, 63}) {
        TinyHost host(model, 64, 0);
        TinyHost::Sequence& other = host.add(0, prompt_of(40, 22));
        host.prefill(other, 11);
        TinyHost::Sequence& s = host.add(2, prompt);
        while (s.computed < s.prompt_len) {
          host.decode(other);
          host.plan(s, std::min(s.prompt_len, s.computed + chunk));
          host.step();
        }
        host.run(s, 40);
        expect_same(want, s.output);
        EXPECT_GT(host.totals().pages_quantised, 0);
      }
    }
  }
}

class TieredKv : public testing::TestWithParam<core::DType> {};
INSTANTIATE_TEST_SUITE_P(KvTypes, TieredKv,
                         testing::Values(core::DType::kBF16, core::DType::kI8,
                                         core::DType::kF8E4M3),
                         [](const auto& type) { return std::string(core::info(type.param).name); });

TEST_P(TieredKv, APutBackSequenceReturnsUndisturbed) {
  TinyModel model({.kv_type = GetParam()});
  const auto prompt_a = prompt_of(200, 5), prompt_b = prompt_of(120, 6);
  const auto want_a = resident_run(model, prompt_a, 60);
  TinyHost host(model, 64, 20, tier());
  TinyHost::Sequence& a = host.add(0, prompt_a);
  TinyHost::Sequence& b = host.add(1, prompt_b);
  host.prefill(a, 48);
  host.run(a, 20);
  host.cut(a, 1);
  host.prefill(b, 48);
  host.run(b, 20);
  host.end(b, false);
  host.grow(a, kSelection);
  host.run(a, 40);
  expect_same(want_a, a.output);
}

// Nothing of a sequence is left for the one that follows in its slot and its blocks: neither
// selections nor statistics, with a host tier or without.
TEST(Tiered, AnotherSequenceInTheSameSlotAndBlocks) {
  for (int32_t reuse_interval : {1, 4}) {
    TinyModel model({.reuse_interval = reuse_interval});
    const auto prompt_a = prompt_of(300, 18), prompt_b = prompt_of(290, 19);
    const auto want_b = resident_run(model, prompt_b, 40);
    for (int32_t num_rows : {0, 24}) {
      TinyHost host(model, 24, num_rows, tier());
      TinyHost::Sequence& a = host.add(2, prompt_a);
      host.prefill(a, 48);
      host.run(a, 40);
      host.end(a, false);
      host.step();
      TinyHost::Sequence& b = host.add(2, prompt_b);
      host.prefill(b, 48);
      if (num_rows > 0) host.cut(b, kSelection);
      host.run(b, 40);
      expect_same(want_b, b.output);
      EXPECT_GT(std::ranges::count_if(
                    b.blocks, [&](core::BlockId id) { return std::ranges::count(a.blocks, id); }),
                10);
    }
  }
}

// A prefix in shared rows, of a resident sequence and of one that is not; and let go of.
TEST(Tiered, SharedRows) {
  for (const TinyShape& shape :
       {TinyShape{}, TinyShape{.heads = streaming_heads()}, TinyShape{.kv_type = core::DType::kI8},
        TinyShape{.heads = streaming_heads(), .kv_type = core::DType::kF8E4M3}}) {
    TinyModel model(shape);
    auto prompt_a = prompt_of(200, 7), prompt_b = prompt_a;
    prompt_b.resize(130);
    const auto tail = prompt_of(60, 8);
    prompt_b.insert(prompt_b.end(), tail.begin(), tail.end());
    const auto want_b = resident_run(model, prompt_b, 60);
    TinyTier options = tier();
    options.home_streaming_heads = shape.heads.any_streaming();
    TinyHost host(model, 64, 40, options);
    TinyHost::Sequence& a = host.add(0, prompt_a);
    host.prefill(a, 48);
    host.end(a, true);
    TinyHost::Sequence& b = host.add(0, prompt_b);
    host.share_prefix(b, a, 8);
    host.load_shared(b, 8);
    host.prefill(b, 48);
    host.run(b, 20);
    host.cut(b, kSelection);
    host.run(b, 20);
    host.cut(b, 3, /*drop_shared=*/true);
    host.grow(b, 2);
    host.run(b, 20);
    expect_same(want_b, b.output);
    EXPECT_GT(host.totals().pages_missed, 0);
  }
}

// A sequence that lost everything is computed again: its generated rows as decode rows, a page of
// them in a step, some over all their pages and some under selection.
TEST_P(TieredKv, ReplaysDecodeRows) {
  for (int32_t reuse_interval : {1, 4}) {
    TinyModel model({.reuse_interval = reuse_interval, .kv_type = GetParam()});
    for (int32_t length : {40, 150}) {
      const auto prompt = prompt_of(length, 16);
      const auto want = resident_run(model, prompt, 60);
      TinyHost host(model, 64, 30, tier());
      TinyHost::Sequence& s = host.add(0, prompt);
      for (const Sampled& sampled : want) s.tokens.push_back(sampled.token);
      s.tokens.pop_back();
      host.prefill(s, 48);
      host.cut(s, 2);
      while (s.output.empty()) {
        const int32_t page_end = (s.computed / host.page_tokens() + 1) * host.page_tokens();
        host.plan(s, std::min(static_cast<int32_t>(s.tokens.size()), page_end));
        host.step();
      }
      expect_same({want.back()}, s.output);
    }
  }
}

// A prompt a layer at a time, each layer in pieces of `piece` tokens; layers at once where `piece`
// takes the whole prompt.
void prefill_segmented(TinyHost& host, TinyHost::Sequence& s, int32_t piece, int32_t layers) {
  host.give_activations(s);
  const int32_t begin = s.computed;
  for (int32_t layer = 0; layer < TinyModel::kLayers; layer += layers) {
    const int32_t layer_end = std::min(layer + layers, TinyModel::kLayers);
    for (int32_t token = begin; token < s.prompt_len; token += piece) {
      host.plan_layers(s, token, std::min(s.prompt_len, token + piece), layer, layer_end);
      host.step();
    }
  }
}

// Another adopts pages that were sealed in the step before, while they are still on their way home.
TEST(Tiered, APrefixOnItsWayHomeIsWaitedFor) {
  TinyModel model({});
  const auto prompt_a = prompt_of(200, 27);
  auto prompt_b = prompt_a;
  prompt_b.resize(190);
  const auto want_a = resident_run(model, prompt_a, 20);
  const auto want_b = resident_run(model, prompt_b, 20);
  for (const int32_t shared : {0, 8}) {
    TinyTier options = tier();
    options.transfers.fault = slow_saves(1);
    TinyHost host(model, 64, 60, options);
    TinyHost::Sequence& a = host.add(0, prompt_a);
    host.prefill(a, 64);
    TinyHost::Sequence& b = host.add(1, prompt_b);
    host.share_prefix(b, a, 8);
    if (shared > 0) {
      host.load_shared(b, shared);
      host.prefill(b, 64);
    } else {
      b.resident = false;
      host.grow(b, 1);
      host.give_layer_buffers(b);
      prefill_segmented(host, b, 640, 1);
      host.cut(b, 1);
      host.grow(b, kSelection);
    }
    for (int i = 0; i < 19; ++i) {
      host.decode(a);
      host.decode(b);
      host.step();
    }
    host.run(a, 1);
    host.run(b, 1);
    expect_same(want_a, a.output);
    expect_same(want_b, b.output);
  }
}

#ifdef TINY_CUDA
TinyTier row_tier(const TinyShape& shape = {}) {
  TinyTier options = tier(core::LoadMethod::kUva, core::SaveMethod::kExtents);
  options.granularity = core::SaveGranularity::kStep;
  options.home_streaming_heads = shape.heads.any_streaming();
  return options;
}

// What the homes of the sequence's full pages hold.
std::vector<std::byte> homes_of(TinyHost& host, const TinyHost::Sequence& s) {
  const cuda::CudaTier& tier = *host.executor().tier();
  const int64_t bytes = tier.home_columns().num_columns() * host.executor().kv().pool().page_bytes;
  std::vector<std::byte> all;
  for (int32_t page = 0; page < s.computed / host.page_tokens(); ++page) {
    const std::byte* home = tier.home(s.blocks[static_cast<size_t>(page)], 0);
    all.insert(all.end(), home, home + bytes);
  }
  return all;
}

TEST(StepRows, HomesHoldTheBitsOfPages) {
  for (const TinyShape& shape : {TinyShape{}, TinyShape{.heads = streaming_heads()},
                                 TinyShape{.kv_type = core::DType::kF32}}) {
    TinyModel model(shape);
    const auto prompt = prompt_of(203, 23);
    std::vector<std::byte> by_pages;
    for (const bool by_rows : {false, true}) {
      TinyTier options = row_tier(shape);
      if (!by_rows) options.granularity = core::SaveGranularity::kPages;
      TinyHost host(model, 64, 40, options);
      TinyHost::Sequence& s = host.add(1, prompt);
      host.prefill(s, 48);
      host.run(s, 77);
      host.end(s, true);
      host.step();
      // The rows behind the prompt's tail, which goes as a page.
      EXPECT_EQ(host.totals().rows_saved, by_rows ? 280 - 208 : 0);
      const auto homes = homes_of(host, s);
      if (!by_rows) by_pages = homes;
      ASSERT_EQ(homes.size(), by_pages.size());
      EXPECT_EQ(std::memcmp(homes.data(), by_pages.data(), homes.size()), 0);
    }
  }
}

TEST(StepRows, TieredIsResident) {
  run_tiered({}, row_tier(), true);
  run_tiered({.reuse_interval = 4}, row_tier(), false);
  const TinyShape streaming{.heads = streaming_heads()};
  run_tiered(streaming, row_tier(streaming), true);
  TinyTier slow = row_tier();
  slow.transfers.fault = slow_saves(16);
  run_tiered({}, slow, true);
}

TEST(StepRows, AFullRingHoldsStepsUp) {
  TinyModel model({});
  const auto prompt = prompt_of(100, 24);
  const auto want = resident_run(model, prompt, 180);
  TinyTier options = row_tier();
  options.transfers.fault = slow_saves(1);
  TinyHost host(model, 64, 30, options);
  TinyHost::Sequence& s = host.add(0, prompt);
  host.prefill(s, 48);
  host.run(s, 160);
  host.cut(s, kSelection);
  host.run(s, 20);
  expect_same(want, s.output);
  EXPECT_GT(host.totals().save_waits, 0);
}

TEST(StepRows, AFailedCopyFailsTheSequence) {
  TinyModel model({});
  const auto prompt_a = prompt_of(100, 25), prompt_b = prompt_of(96, 26);
  const auto want_a = resident_run(model, prompt_a, 30);
  std::atomic<bool> fails{false};
  TinyTier options = row_tier();
  options.transfers.fault = [&](store::cuda::SaveTicket) -> base::Result<void> {
    if (fails) return base::error(base::Code::kIo, "row lost");
    return {};
  };
  TinyHost host(model, 64, 30, options);
  TinyHost::Sequence& a = host.add(0, prompt_a);
  TinyHost::Sequence& b = host.add(1, prompt_b);
  host.prefill(a, 48);
  host.prefill(b, 48);
  host.decode(b);
  host.step();
  host.run(a, 1);
  // b's first row is at home, and so is everything before it.
  while (host.executor().tier()->transfers().counters().rows_saved == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  fails = true;
  for (int i = 0; i < 200 && b.error.empty(); ++i) host.run(b, 1);
  EXPECT_NE(b.error, "");
  EXPECT_EQ(a.error, "");
  fails = false;
  host.run(a, 29);
  expect_same(want_a, a.output);
}
#endif

TEST(Segmented, LayerBuffersAreTheSameAsChunks) {
  for (const TinyShape& shape :
       {TinyShape{}, TinyShape{.heads = streaming_heads()}, TinyShape{.kv_type = core::DType::kI8},
        TinyShape{.heads = streaming_heads(), .kv_type = core::DType::kF8E4M3}}) {
    TinyModel model(shape);
    for (int32_t length : {16, 100, 288, 331}) {
      const auto prompt = prompt_of(length, 9);
      const auto want = resident_run(model, prompt, 30);
      for (auto [piece, layers] : {std::pair{96, 1}, {640, 1}, {640, 2}, {640, 3}}) {
        TinyHost host(model, 64, 60, tier());
        TinyHost::Sequence& s = host.add(0, prompt);
        s.resident = false;
        host.grow(s, 1);
        host.give_layer_buffers(s);
        prefill_segmented(host, s, piece, layers);
        host.cut(s, 1);
        host.grow(s, kSelection);
        host.run(s, 30);
        expect_same(want, s.output);
        EXPECT_GE(host.totals().layers_segmented, 3);
      }
    }
  }
}

// Saves that read the frames themselves, so late that the layers after them would overwrite these:
// a buffer, and the ring, are used again only when what they held is at home.
TEST(Segmented, BuffersWaitForSlowSaves) {
  for (auto [streaming, layered] : {std::pair{false, true}, {true, true}, {true, false}}) {
    TinyModel model({.heads = streaming ? streaming_heads() : core::HeadKinds{}});
    const auto prompt = prompt_of(331, 17);
    const auto want = resident_run(model, prompt, 30);
    TinyTier options = tier(core::LoadMethod::kUva, core::SaveMethod::kMemcpy);
    options.home_streaming_heads = streaming;
    options.transfers.fault = slow_saves(4);
    TinyHost host(model, 64, 60, options);
    TinyHost::Sequence& s = host.add(0, prompt);
    if (layered) {
      s.resident = false;
      host.grow(s, 1);
      host.give_layer_buffers(s);
      prefill_segmented(host, s, 640, 3);
    } else {
      host.prefill(s, 48);
    }
    host.end(s, true);
    // Others read what came home; a shorter prefix ends in pages that the ring held on its way.
    for (int32_t pages : {20, 9}) {
      TinyHost::Sequence& other = host.add(0, prompt);
      other.resident = false;
      host.share_prefix(other, s, pages);
      host.grow(other, 1);
      host.give_layer_buffers(other);
      prefill_segmented(host, other, 640, 1);
      host.cut(other, 1);
      host.grow(other, kSelection);
      host.run(other, 30);
      expect_same(want, other.output);
      host.end(other, true);
    }
  }
}

TEST_P(TieredKv, SegmentedStraightIntoRowsIsTheSameAsChunks) {
  TinyModel model({.kv_type = GetParam()});
  const auto prompt = prompt_of(331, 10);
  const auto want = resident_run(model, prompt, 30);
  for (int32_t piece : {96, 640}) {
    TinyHost host(model, 64, 60, tier());
    TinyHost::Sequence& s = host.add(0, prompt);
    host.grow(s, 23);
    prefill_segmented(host, s, piece, 1);
    host.run(s, 10);
    EXPECT_EQ(host.totals().pages_missed, 0);
    host.cut(s, kSelection);
    host.run(s, 20);
    expect_same(want, s.output);
  }
}

TEST_P(TieredKv, ACachedPrefixEntersLayerByLayer) {
  for (bool streaming : {false, true}) {
    TinyModel model(
        {.heads = streaming ? streaming_heads() : core::HeadKinds{}, .kv_type = GetParam()});
    auto prompt_a = prompt_of(260, 11), prompt_b = prompt_a;
    const auto tail = prompt_of(75, 12);
    prompt_b.insert(prompt_b.end(), tail.begin(), tail.end());
    const auto want_a = resident_run(model, prompt_a, 0);
    const auto want_b = resident_run(model, prompt_b, 30);
    TinyTier options = tier();
    options.home_streaming_heads = streaming;
    for (int32_t shared : {0, 5}) {
      for (int32_t piece : {32, 640}) {
        TinyHost host(model, 64, 60, options);
        TinyHost::Sequence& a = host.add(0, prompt_a);
        a.resident = false;
        host.grow(a, 1);
        host.give_layer_buffers(a);
        prefill_segmented(host, a, 64, 1);
        expect_same(want_a, a.output);
        host.end(a, true);
        TinyHost::Sequence& b = host.add(0, prompt_b);
        b.resident = false;
        host.share_prefix(b, a, 16);
        host.load_shared(b, shared);
        host.grow(b, 1);
        host.give_layer_buffers(b);
        prefill_segmented(host, b, piece, 1);
        host.cut(b, 1);
        host.grow(b, kSelection);
        host.run(b, 30);
        expect_same(want_b, b.output);
      }
    }
  }
}

#ifndef TINY_CUDA
// Fails the transfers of one home, as long as it is asked to.
struct Fault {
  std::atomic<const std::byte*> home{nullptr};
  std::atomic<bool> save{false};
  store::TransferFault function() {
    return [this](bool is_save, const store::PageCopy& copy) -> base::Result<void> {
      if (is_save == save && (is_save ? copy.to : copy.from) == home.load()) {
        return base::error(base::Code::kIo, "page lost");
      }
      return {};
    };
  }
};

TEST(Tiered, AFailedLoadFailsItsSequenceAlone) {
  TinyModel model({});
  const auto prompt_a = prompt_of(200, 13), prompt_b = prompt_of(200, 14);
  const auto want_a = resident_run(model, prompt_a, 30);
  Fault fault;
  TinyTier options = tier();
  options.transfers.fault = fault.function();
  TinyHost host(model, 64, 30, options);
  TinyHost::Sequence& a = host.add(0, prompt_a);
  TinyHost::Sequence& b = host.add(1, prompt_b);
  host.prefill(a, 48);
  host.cut(a, kSelection);
  host.prefill(b, 48);
  host.cut(b, kSelection);
  fault.home = host.executor().tier()->homes().item(3, core::index(b.blocks[0]));
  for (int i = 0; i < 30; ++i) {
    host.decode(a);
    if (b.error.empty()) host.decode(b);
    host.step();
  }
  expect_same(want_a, a.output);
  EXPECT_EQ(a.error, "");
  EXPECT_NE(b.error, "");
  EXPECT_FALSE(host.result().segments.size() > 1);
}

TEST(Tiered, AFailedSaveLosesItsBlock) {
  TinyModel model({});
  const auto prompt = prompt_of(100, 15);
  Fault fault;
  fault.save = true;
  TinyTier options = tier();
  options.transfers.fault = fault.function();
  TinyHost host(model, 64, 30, options);
  TinyHost::Sequence& s = host.add(0, prompt);
  host.plan(s, 48);
  fault.home = host.executor().tier()->homes().item(2, core::index(s.blocks[1]));
  host.step();
  // The save ends when it likes: the step after that tells.
  EXPECT_EQ(host.result().lost.size(), 0u);
  const store::PagePool& homes = host.executor().tier()->homes();
  std::byte* const last = homes.item(homes.shape().num_columns - 1, core::index(s.blocks[2]));
  EXPECT_TRUE(host.executor().tier()->transfers().settle({&last, 1}).ok());
  host.plan(s, 49);
  host.step();
  const std::vector<core::BlockId>& lost = host.result().lost;
  EXPECT_EQ(std::ranges::count(lost, s.blocks[1]), 1);
  EXPECT_NE(s.error, "");
}
#else
// What is saved behind a ticket that fails is lost, and its sequence told.
TEST(Tiered, AFailedSaveLosesItsBlocks) {
  TinyModel model({});
  TinyTier options = tier();
  options.transfers.fault = [](uint64_t ticket) -> base::Result<void> {
    if (ticket == 1) return base::error(base::Code::kIo, "page lost");
    return {};
  };
  TinyHost host(model, 64, 30, options);
  TinyHost::Sequence& s = host.add(0, prompt_of(100, 15));
  host.plan(s, 48);
  host.step();
  EXPECT_EQ(host.result().lost.size(), 0u) << "the save ends when it likes";
  EXPECT_FALSE(host.executor().tier()->settle(s.blocks[1]));
  host.plan(s, 49);
  host.step();
  EXPECT_EQ(std::ranges::count(host.result().lost, s.blocks[1]), 1);
  EXPECT_NE(s.error, "");
}
#endif

}  // namespace
}  // namespace exec
