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
