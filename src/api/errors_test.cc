// The table of errors and docs/errors.md say the same, row by row; the JSON of an error has the
// shape clients read.
#include "api/errors.h"

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "api/json_writer.h"

namespace api {
namespace {

std::string as_markdown(const ProblemRow& row) {
  return std::string("| ") + row.situation + " | " + std::to_string(row.status) + " | " + row.type +
         " | " + row.code + " | " + (row.retry_after ? "yes |" : "|");
}

TEST(Errors, TableAndPageAreEqual) {
  std::ifstream page(SPILLWAY_SOURCE_DIR "/docs/errors.md");
  std::vector<std::string> rows;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| ") || line.starts_with("| situation")) continue;
    if (line.starts_with("| status") || std::isdigit(line[2]) != 0) continue;  // Anthropic's types
    rows.push_back(line);
  }
  ASSERT_EQ(rows.size(), problem_table().size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], as_markdown(problem_table()[i]));
}

// The page's second table, from statuses to Anthropic's types.
TEST(Errors, AnthropicsTypesAreThoseOfThePage) {
  std::ifstream page(SPILLWAY_SOURCE_DIR "/docs/errors.md");
  std::map<int, std::string> types;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| ") || std::isdigit(line[2]) == 0) continue;
    const size_t bar = line.find(" | ", 2);
    const std::string type = line.substr(bar + 3, line.find(" |", bar + 3) - bar - 3);
    std::istringstream statuses(line.substr(2, bar - 2));
    for (std::string status; std::getline(statuses, status, ',');) types[std::stoi(status)] = type;
  }
  for (const ProblemRow& row : problem_table())
    EXPECT_EQ(types[row.status], anthropic_type(row)) << row.code;
}

TEST(Errors, EveryProblemHasItsRowAndItsOwnCode) {
  std::set<std::string> codes;
  for (const ProblemRow& row : problem_table()) {
    EXPECT_EQ(&row_of(row.problem), &row);
    EXPECT_TRUE(codes.insert(row.code).second) << row.code;
  }
}

TEST(Errors, ShapeOfTheObject) {
  EXPECT_EQ(
      error_json({Problem::kInvalidValue, "a \"b\"\n", "top_p"}),
      R"({"error":{"message":"a \"b\"\n","type":"invalid_request_error","param":"top_p","code":"invalid_value"}})");
  ApiError context{Problem::kContextLengthExceeded, "m", ""};
  context.n_prompt_tokens = 5;
  context.n_ctx = 4;
  EXPECT_EQ(error_json(context),
            R"({"error":{"message":"m","type":"invalid_request_error","param":null,)"
            R"("code":"context_length_exceeded","n_prompt_tokens":5,"n_ctx":4}})");
  EXPECT_EQ(
      error_json({Problem::kEngineDead, "a \"b\""}, ErrorShape::kAnthropic, "r1"),
      R"({"type":"error","error":{"type":"overloaded_error","message":"a \"b\""},"request_id":"r1"})");
  EXPECT_EQ(error_shape_of("/v1/messages/count_tokens"), ErrorShape::kAnthropic);
  EXPECT_EQ(error_shape_of("/v1/messages"), ErrorShape::kAnthropic);
  EXPECT_EQ(error_shape_of("/v1/messagesx"), ErrorShape::kOpenAi);
  const http::Response full = error_response({Problem::kQueueFull, "m"});
  EXPECT_EQ(full.status, 429);
  ASSERT_EQ(full.headers.size(), 1u);
  EXPECT_EQ(full.headers[0].name, "Retry-After");
}

TEST(Errors, EngineErrorsHaveTheirMeaning) {
  using base::Code;
  EXPECT_EQ(from_engine_error({Code::kInvalidArgument, ""}).problem, Problem::kInvalidValue);
  EXPECT_EQ(from_engine_error({Code::kTooLarge, ""}).problem, Problem::kContextLengthExceeded);
  EXPECT_EQ(from_engine_error({Code::kUnsupported, ""}).problem, Problem::kUnsupportedParameter);
  EXPECT_EQ(from_engine_error({Code::kOverloaded, ""}).problem, Problem::kQueueFull);
  for (const Code code : {Code::kNotFound, Code::kCancelled, Code::kIo, Code::kInternal}) {
    EXPECT_EQ(from_engine_error({code, "m"}).problem, Problem::kInternal);
  }
}

TEST(JsonWriter, AnyBytesBecomeValidJson) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  for (const std::string& text :
       {bytes, std::string("\xF0\x9F\x98\x80\xE2\x82"), std::string(1, '\0'),
        std::string("\xED\xA0\x80\xC0\x80\xF5\x80\x80\x80")}) {
    std::string out;
    append_json_string(out, text);
    EXPECT_FALSE(nlohmann::json::parse(out, nullptr, false).is_discarded()) << out;
  }
  std::string out;
  append_json_string(out, "\xE2\x82\xAC \xE2\x82 x\"\\\x01\x7f");
  EXPECT_EQ(out, "\"\u20AC \uFFFD x\\\"\\\\\\u0001\\u007f\"");
}

TEST(JsonWriter, LogprobsAreNumbersEvenWhenTheyAreNot) {
  for (const float value :
       {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -1e30f}) {
    std::string out;
    append_json_logprob(out, value);
    EXPECT_EQ(out, "-9999");
  }
  std::string out;
  append_json_logprob(out, -0.1f);
  EXPECT_EQ(out, "-0.1");
}

TEST(JsonWriter, CountsCharacters) {
  EXPECT_EQ(utf8_length("a\u20AC\xF0\x9F\x98\x80\xFF"), 4);
}

}  // namespace
}  // namespace api
