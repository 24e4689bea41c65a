// Every version of attention and of the KV write against the reference, at the sizes where paging
// goes wrong, and the promise that a row's bits depend on its own sequence alone: computed in other
// chunks, batches and numbers of threads, they are equal. Allocations are counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "ops/attention_world.h"

namespace ops {
namespace {

TEST(Attention, AgreesWithReference) {
  const std::vector<Shape> shapes = {{9, 3, 64, 32},  {8, 2, 128, 32}, {4, 4, 80, 16},
                                     {16, 1, 96, 64}, {2, 1, 256, 32}, {3, 3, 16, 16},
                                     {6, 3, 112, 64}, {5, 1, 48, 16}};
  for (Shape shape : shapes) {
    for (auto type : {core::DType::kBF16, core::DType::kF16, core::DType::kF32}) {
      shape.type = type;
      const int32_t page = shape.page_tokens;
      // Each sequence writes all but its last rows first, then computes those rows.
      const std::vector<int32_t> lengths = {1, page - 1, page, page + 1, 2 * page + 7, 131, 70};
      std::vector<Part> before, parts;
      for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
        const int32_t length = lengths[static_cast<size_t>(s)];
        const int32_t begin = s == 6 ? 0 : std::max(0, length - 1 - s);
        if (begin > 0) before.push_back({s, kPrompt, 0, begin, {}});
        parts.push_back({s, s % 3 == 1 ? kDecode : kPrompt, begin, length, {}});
      }
      World world(shape, lengths, 7);
      for (const Version& version : versions()) {
        SCOPED_TRACE(testing::Message()
                     << version.name << " Hq " << shape.num_q_heads << " D " << shape.head_dim
                     << " P " << page << " type " << core::info(type).name);
        world.spoil();
        if (!before.empty()) world.write(kReference, before);
        const auto expected = world.run(kReference, parts, 2);
        const auto actual = world.run(version, parts, 2);
        expect_near(actual, expected, tolerance(type) * world.largest_value());
      }
    }
  }
}

TEST(Attention, LongContextAgreesWithReference) {
  for (Shape shape : {Shape{4, 1, 64, 32}, Shape{8, 2, 128, 16}, Shape{2, 2, 96, 64}}) {
    World world(shape, {1000, 2311}, 11);
    for (const Version& version : versions()) {
      SCOPED_TRACE(version.name);
      world.spoil();
      world.write(kReference, {{0, kPrompt, 0, 990}, {1, kPrompt, 0, 2304}});
      const std::vector<Part> parts = {{1, kDecode, 2304, 2311}, {0, kPrompt, 990, 1000}};
      const auto expected = world.run(kReference, parts, 2);
      expect_near(world.run(version, parts, 2), expected,
                  tolerance(shape.type) * world.largest_value());
    }
  }
}

TEST(Attention, RowsKeepTheirBitsInAnyChunkBatchAndTeam) {
  for (Shape shape :
       {Shape{9, 3, 64, 32}, Shape{4, 1, 128, 16}, Shape{2, 2, 80, 64, core::DType::kF32}}) {
    const int32_t length = 333;
    const size_t row = static_cast<size_t>(shape.num_q_heads * shape.head_dim);
    World world(shape, {length, 150}, 23);
    const auto expected = world.run(kReference, {{0, kPrompt, 0, length}}, 2);
    for (const Version& version : versions()) {
      SCOPED_TRACE(version.name);
      world.spoil();
      const auto whole = world.run(version, {{0, kPrompt, 0, length}}, 1);
      expect_near(whole, expected, tolerance(shape.type) * world.largest_value());
      for (int threads : {2, 3}) {
        const auto again = world.run(version, {{0, kPrompt, 0, length}}, threads);
        EXPECT_TRUE(same_bits(whole.data(), again.data(), whole.size())) << threads << " threads";
      }
      world.spoil();
      std::mt19937 random(5);
      for (int32_t begin = 0; begin < length;) {
        const int32_t end = std::min(length, begin + 1 + static_cast<int32_t>(random() % 70));
        const auto chunk = world.run(version, {{1, kPrompt, 0, 150}, {0, kPrompt, begin, end}}, 2);
        EXPECT_TRUE(same_bits(chunk.data() + 150 * row,
                              whole.data() + static_cast<size_t>(begin) * row,
                              static_cast<size_t>(end - begin) * row))
            << "rows " << begin << " to " << end;
        begin = end;
      }
    }
  }
}

TEST(Attention, DecodeRowsKeepTheirBitsInAnyBatchAndTeam) {
  const Shape shape{8, 2, 64, 16};
  World world(shape, {700, 33, 1}, 29);
  const size_t row = static_cast<size_t>(shape.num_q_heads * shape.head_dim);
  for (const Version& version : versions()) {
    SCOPED_TRACE(version.name);
    world.run(version, {{0, kPrompt, 0, 699}, {1, kPrompt, 0, 32}}, 2);
    const auto alone = world.run(version, {{0, kDecode, 699, 700}}, 1);
    for (int threads : {1, 2, 3}) {
      const auto batch = world.run(
          version,
          {{2, kDecode, 0, 1}, {0, kDecode, 690, 700}, {1, kDecode, 32, 33}, {1, kPrompt, 3, 20}},
          threads);
      EXPECT_TRUE(same_bits(alone.data(), batch.data() + 10 * row, row)) << threads << " threads";
    }
  }
}

TEST(Attention, OutMayAliasQueriesAndOtherRowsAreLeftAlone) {
  const Shape shape{6, 2, 32, 16};
  const size_t row = 6 * 32;
  World world(shape, {600}, 31);
  for (const Version& version : versions()) {
    world.run(version, {{0, kPrompt, 0, 600}}, 2);
    for (auto kind : {kPrompt, kDecode}) {
      World::Inputs in = world.inputs({{0, kind, 540, 600}}, 2);
      in.segments[0].row_end -= 4;
      std::vector<float> separate(in.q.size(), -1.0f), same = in.q;
      world.attend(version, in, in.q.data(), separate.data());
      world.attend(version, in, same.data(), same.data());
      EXPECT_TRUE(same_bits(same.data(), separate.data(), 56 * row));
      EXPECT_TRUE(same_bits(same.data() + 56 * row, in.q.data() + 56 * row, 4 * row));
      EXPECT_EQ(separate[56 * row], -1.0f);
    }
  }
}

TEST(KvWrite, RoundsLikeTheReference) {
  for (auto type : {core::DType::kBF16, core::DType::kF16, core::DType::kF32}) {
    World world({3, 3, 48, 16, type}, {100}, 37);
    world.make_keys_awkward();
    for (const Version& version : versions()) {
      world.spoil();
      world.write(kReference, {{0, kPrompt, 0, 37}, {0, kDecode, 99, 100}});
      const auto expected = world.pool_bytes();
      world.spoil();
      world.write(version, {{0, kPrompt, 0, 37}, {0, kDecode, 99, 100}});
      EXPECT_EQ(world.pool_bytes(), expected) << version.name << " " << core::info(type).name;
    }
  }
}

TEST(Attention, WorkspaceDoesNotGrowWithDecodeRowsTimesContext) {
  const AttentionShape shape{.num_q_heads = 8,
                             .num_kv_heads = 2,
                             .head_dim = 128,
                             .page_tokens = 32,
                             .rows_max = 512,
                             .decode_rows_max = 256,
                             .context_max = 128 * 1024,
                             .num_threads = 2};
  for (const Version& version : versions()) EXPECT_LT(version.workspace_bytes(shape), 4 << 20);
}

}  // namespace
}  // namespace ops
