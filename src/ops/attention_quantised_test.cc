// Attention over quantised pages: each row reads its own page as it was written and all earlier
// ones as codes, whichever rows share its call. Rows that come in chunks, as they do in service,
// have the bits of the whole prompt though all that they must not see is NaN; decode rows those of
// BF16 pages that hold what the codes mean. Heads of both kinds and selections:
// attention_heads_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "ops/attention_world.h"

namespace ops {
namespace {

std::vector<Shape> shapes() {
  constexpr auto kI8 = core::DType::kI8, kF8 = core::DType::kF8E4M3;
  return {{9, 3, 64, 32, kI8, {}},
          {4, 1, 128, 16, kF8, {}},
          {2, 2, 80, 64, kI8, {}},
          {2, 2, 48, 16, kF8, {}},
          {8, 2, 128, 16, kI8, {{}, {20, 100}}},
          {6, 2, 64, 64, kF8, {{0, 7}, {70, 65}}}};
}

testing::Message describe(const Version& version, const Shape& shape) {
  testing::Message message;
  message << version.name << " " << core::info(shape.type).name << " D " << shape.head_dim << " P "
          << shape.page_tokens;
  return message;
}

TEST(QuantisedAttention, AgreesWithReference) {
  for (const Shape& shape : shapes()) {
    World world(shape, {1, shape.page_tokens, shape.page_tokens + 1, 230}, 61);
    const std::vector<Part> parts = {{0, kPrompt, 0, 1, {}},
                                     {1, kPrompt, 0, shape.page_tokens, {}},
                                     {2, kPrompt, 0, shape.page_tokens + 1, {}},
                                     {3, kPrompt, 30, 230, {}}};
    const std::vector<Part> decode = {{0, kDecode, 0, 1, {}},
                                      {1, kDecode, shape.page_tokens - 1, shape.page_tokens, {}},
                                      {2, kDecode, shape.page_tokens, shape.page_tokens + 1, {}},
                                      {3, kDecode, 190, 230, {}}};
    for (const auto& call : {parts, decode}) {
      world.write(kReference, {{3, kPrompt, 0, 230, {}}});
      const auto expected = world.run(kReference, call, 2);
      for (const Version& version : versions()) {
        SCOPED_TRACE(describe(version, shape));
        expect_near(world.run(version, call, 2), expected,
                    tolerance(shape.type) * world.largest_value());
      }
    }
  }
}

TEST(QuantisedAttention, RowsKeepTheirBitsInAnyChunkBatchAndTeam) {
  std::mt19937 random(67);
  for (const Shape& shape : shapes()) {
    const int32_t length = 333;
    const size_t row = static_cast<size_t>(shape.num_q_heads * shape.head_dim);
    World world(shape, {length, 150}, 23);
    for (const Version& version : versions()) {
      SCOPED_TRACE(describe(version, shape));
      const auto whole = world.run(version, {{0, kPrompt, 0, length, {}}}, 1);
      for (int32_t begin = 0; begin < length;) {
        const int32_t end = std::min(length, begin + 1 + static_cast<int32_t>(random() % 70));
        const std::vector<Part> parts = {{1, kPrompt, 0, 150, {}}, {0, kPrompt, begin, end, {}}};
        world.write(version, {{0, kPrompt, 0, end, {}}, {1, kPrompt, 0, 150, {}}});
        world.spoil_unseen(parts);
        const auto chunk = world.attend(version, parts, 1 + static_cast<int>(random() % 3));
        EXPECT_TRUE(same_bits(chunk.data() + 150 * row,
                              whole.data() + static_cast<size_t>(begin) * row,
                              static_cast<size_t>(end - begin) * row))
            << "rows " << begin << " to " << end;
        begin = end;
      }
    }
  }
}

TEST(QuantisedAttention, DecodeHasTheBitsOfWhatTheCodesMean) {
  for (Shape shape : shapes()) {
    for (const Version& version : versions()) {
      SCOPED_TRACE(describe(version, shape));
      World quantised(shape, {900}, 71);
      Shape plain = shape;
      plain.type = core::DType::kBF16;
      World expected(plain, {900}, 71);
      quantised.write(version, {{0, kPrompt, 0, 900, {}}});
      expected.write(version, {{0, kPrompt, 0, 900, {}}});
      for (int32_t position : {0, 15, 16, 63, 64, 333, 511, 512, 899}) {
        const std::vector<Part> row = {{0, kDecode, position, position + 1, {}}};
        expected.write(version, {{0, kPrompt, 0, 900, {}}});
        expected.read_pages(quantised, position / shape.page_tokens);
        const auto a = quantised.attend(version, row, 2), b = expected.attend(version, row, 2);
        EXPECT_TRUE(same_bits(a.data(), b.data(), a.size())) << "position " << position;
      }
    }
  }
}

}  // namespace
}  // namespace ops
