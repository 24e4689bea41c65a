// Goal: whatever a message holds, it is one line, and as JSON one object that a parser takes.
// Method: lines made by the formatter, without the logger's own output, are compared and parsed.
#include "base/log_event.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace base {
namespace {

using spdlog::level::info;
using spdlog::level::warn;

class LogFormat : public ::testing::Test {
 protected:
  ~LogFormat() override { EXPECT_TRUE(set_log_format("text").ok()); }
};

TEST_F(LogFormat, TextStaysOneLine) {
  EXPECT_TRUE(log_line(false, info, "loaded 3", nullptr).ends_with(".000 I loaded 3"));
  EXPECT_TRUE(log_line(false, warn, "a\nb\x1b[2Jc\xff\"", nullptr)
                  .ends_with(" W a\\nb\\u001b[2Jc\xEF\xBF\xBD\""));
}

TEST_F(LogFormat, EventsHaveFields) {
  LogFields fields;
  fields.add("id", "r-1").add("tokens", int64_t{12}).add("ms", 1.23456).add("model", "a \"b\"");
  EXPECT_TRUE(log_line(false, info, "request", &fields)
                  .ends_with(" I request id=r-1 tokens=12 ms=1.235 model=\"a \\\"b\\\"\""));
}

TEST_F(LogFormat, JsonIsParsedBack) {
  ASSERT_TRUE(set_log_format("json").ok());
  LogFields fields;
  fields.add("id", "q\"\\,\n").add("tokens", int64_t{12}).add("ms", 0.5);
  const auto event = nlohmann::json::parse(log_line(true, info, "request", &fields));
  EXPECT_EQ(event["time"], "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(event["level"], "info");
  EXPECT_EQ(event["message"], "request");
  EXPECT_EQ(event["id"], "q\"\\,\n");
  EXPECT_EQ(event["tokens"], 12);
  EXPECT_EQ(event["ms"], 0.5);
  const auto plain = nlohmann::json::parse(log_line(true, warn, "a, \"b\"\x01\xC0\x80", nullptr));
  EXPECT_EQ(plain["message"], "a, \"b\"\x01\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(plain["level"], "warning");
}

TEST_F(LogFormat, WordsThatAreNoFormatAreRefused) {
  EXPECT_FALSE(set_log_format("yaml").ok());
  EXPECT_FALSE(set_log_level("loud").ok());
}

}  // namespace
}  // namespace base
