// Goal: a trace that was written is read back, stands in for rows of another model as the header
// says, and damaged files are refused with their line. Method: a small trace by hand; each kind of
// damage; every prefix of the file.
#include "apps/selection_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TraceHeader kHeader{
    .model = "m", .num_layers = 2, .num_kv_heads = 2, .page_tokens = 32, .budget_tokens = 128};

std::string good() {
  std::string text = format_trace_header(kHeader);
  for (const int32_t position : {100, 101}) {
    for (const int32_t layer : {0, 1}) {
      text += format_trace_row({.sequence = 7,
                                .position = position,
                                .layer = layer,
                                .pages = {{0, position - 98, 20 + layer}, {}}});
    }
  }
  return text + format_trace_row({.sequence = 9, .position = 5, .layer = 1, .pages = {{}, {4}}});
}

TEST(SelectionTrace, ReadsWhatWasWritten) {
  const SelectionTrace trace = SelectionTrace::parse("t", good()).value();
  EXPECT_EQ(trace.header().page_tokens, 32);
  EXPECT_EQ(trace.header().budget_tokens, 128);
  EXPECT_EQ(trace.num_sequences(), 2);
  EXPECT_THAT(trace.find(0, 0, 0, 0), ElementsAre(0, 2, 20));
  EXPECT_THAT(trace.find(0, 1, 1, 0), ElementsAre(0, 3, 21));
  EXPECT_TRUE(trace.find(0, 1, 1, 1).empty());
  EXPECT_THAT(trace.find(1, 0, 1, 1), ElementsAre(4));
}

TEST(SelectionTrace, StandsInModulo) {
  const SelectionTrace trace = SelectionTrace::parse("t", good()).value();
  EXPECT_THAT(trace.find(4, 1003, 3, 6), ElementsAre(0, 3, 21));
  EXPECT_THAT(trace.find(3, 77, 5, 1), ElementsAre(4));
}

// One head of a text of 130 rows from position 16000 on, whose row r attends to the page 1 + r, the
// first and its own.
std::string long_trace() {
  std::string text = format_trace_header(
      {.model = "m", .num_layers = 1, .num_kv_heads = 1, .page_tokens = 16, .budget_tokens = 48});
  for (int32_t row = 0; row < 130; ++row) {
    text += format_trace_row({.sequence = 1,
                              .position = 16000 + row,
                              .layer = 0,
                              .pages = {{0, 1 + row, (16000 + row) / 16}}});
  }
  return text;
}

TEST(SelectionTrace, EachPlaceIsAtAnotherTimeAndTheSamePlaceOfAPage) {
  const SelectionTrace trace = SelectionTrace::parse("t", long_trace()).value();
  const auto row_of = [&](uint64_t sequence, int32_t position, int32_t layer, int32_t head) {
    return trace.find(sequence, position, layer, head)[1] - 1;
  };
  EXPECT_EQ(row_of(0, 16000, 0, 0), 0);
  EXPECT_EQ(row_of(0, 16037, 0, 0), 37);
  EXPECT_EQ(row_of(0, 16128 + 5, 0, 0), 5) << "128 rows are whole pages, two are left out";
  EXPECT_EQ(row_of(0, 16000 - 128, 0, 0), 0);
  EXPECT_EQ(row_of(1, 16000, 0, 0), 11 * 16 % 128);
  EXPECT_EQ(row_of(0, 16000, 1, 0), 17 * 16 % 128);
  EXPECT_EQ(row_of(0, 16000, 0, 1), 5 * 16 % 128);
}

TEST(SelectionTrace, RecentPagesKeepTheirDistanceAndOlderOnesTheirPlace) {
  std::string text = format_trace_header(
      {.model = "m", .num_layers = 1, .num_kv_heads = 1, .page_tokens = 32, .budget_tokens = 192});
  text += format_trace_row(
      {.sequence = 1, .position = 32 * 500, .layer = 0, .pages = {{0, 7, 436, 437, 499, 500}}});
  const SelectionTrace trace = SelectionTrace::parse("t", text).value();
  const auto at = [&](int32_t own_page, int32_t count) {
    std::vector<int32_t> pages(static_cast<size_t>(count), -1);
    pages.back() = own_page;
    pages.resize(static_cast<size_t>(trace.replay(0, own_page * 32, 0, 0, pages.data(), count)));
    return pages;
  };
  EXPECT_THAT(at(500, 6), ElementsAre(0, 7, 436, 437, 499, 500));
  EXPECT_THAT(at(1000, 6), ElementsAre(0, 7, 436, 937, 999, 1000));
  EXPECT_THAT(at(1000, 4), ElementsAre(0, 7, 436, 1000)) << "no more than it would select itself";
  EXPECT_THAT(at(200, 6), ElementsAre(0, 7, 137, 199, 200)) << "what lies behind it is left out";
  EXPECT_THAT(at(0, 1), ElementsAre(0));
}

TEST(SelectionTrace, RoomIsBoundedByWhatAFileCanNeed) {
  std::string text = format_trace_header({.model = "m",
                                          .num_layers = 1024,
                                          .num_kv_heads = 1024,
                                          .page_tokens = 32,
                                          .budget_tokens = 128});
  for (int32_t position = 0; position < 9; ++position) {
    text += format_trace_row({.sequence = 1,
                              .position = position,
                              .layer = 0,
                              .pages = std::vector<std::vector<int32_t>>(1024)});
  }
  const auto trace = SelectionTrace::parse("t", text);
  ASSERT_FALSE(trace.ok()) << "9 lines would take 200 MB";
  EXPECT_THAT(trace.error().message, HasSubstr("t:10: expected fewer rows"));
}

TEST(SelectionTrace, DamageIsRefusedWithItsLine) {
  const auto refuse = [](const std::string& text, const std::string& words) {
    const auto trace = SelectionTrace::parse("t", text);
    ASSERT_FALSE(trace.ok()) << text;
    EXPECT_THAT(trace.error().message, HasSubstr(words));
  };
  const std::string header = format_trace_header(kHeader);
  refuse("", "t:1: no trace");
  refuse("{\"spillway_trace\": 2}\n", "t:1: no trace");
  refuse("{\"spillway_trace\": 1, \"layers\": 0}\n", "t:1: `layers`");
  refuse(header, "no selections");
  refuse(header + "\n[1,2,0,[0]]\n", "t:3: expected [sequence");
  refuse(header + "[1,2,2,[0],[0]]\n", "t:2: expected a sequence");
  refuse(header + "[1,-2,0,[0],[0]]\n", "t:2: expected a sequence");
  refuse(header + "[1,2,0,[0,0],[0]]\n", "rising pages");
  refuse(header + "[1,2,0,[0],[99999999]]\n", "rising pages");
  refuse(header + "[1,2,0,[0],[18446744073709551615]]\n", "rising pages");
  refuse(header + "[1,2,0,[0],[true]]\n", "rising pages");
  const std::string text = good();
  for (size_t length = 0; length < text.size(); ++length) {
    const auto trace = SelectionTrace::parse("t", text.substr(0, length));
    const bool whole_lines = text[length] == '\n' || (length > 0 && text[length - 1] == '\n');
    EXPECT_TRUE(!trace.ok() || whole_lines) << length;
  }
}

}  // namespace
}  // namespace apps
