// Streams as servers send them, event by event with made-up times: what counts as a chunk, where
// the counts come from, and each way an answer can fail.
#include "apps/bench_serve_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const base::Result<http::Response> kStreamed = http::Response{.content_type = "text/event-stream"};

// Scheduled at 0.5, arrived at 0.75, sent at 1; the events come at 2, 3, 4, ...
Outcome read(std::initializer_list<const char*> events,
             const base::Result<http::Response>& response = kStreamed) {
  AnswerReader reader({0.5, 0.75, 1}, 7, /*keep_text=*/true);
  double now = 2;
  for (const char* event : events) reader.take(event, now++);
  return reader.finish(response);
}

TEST(Answer, CompletionWithUsage) {
  const Outcome o = read({R"({"choices":[{"text":"a","finish_reason":null}],"usage":null})",
                          R"({"choices":[{"text":"bc","finish_reason":null}]})",
                          R"({"choices":[{"text":"","finish_reason":"length"}]})",
                          R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5,
           "prompt_tokens_details":{"cached_tokens":4}}})",
                          "[DONE]"});
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.start_s, 1);
  EXPECT_EQ(o.queue_s, 0.25);
  EXPECT_EQ(o.late_s, 0.5);
  EXPECT_EQ(o.lag_s(), 0.25);
  EXPECT_EQ(o.ttft_s, 1);
  EXPECT_THAT(o.itls_s, ElementsAre(1, 1));
  EXPECT_EQ(o.latency_s, 3) << "to the last chunk with a choice";
  EXPECT_EQ(o.input_tokens, 9);
  EXPECT_EQ(o.output_tokens, 5);
  EXPECT_EQ(o.cached_tokens, 4);
  EXPECT_EQ(o.text, "abc");
}

TEST(Answer, ChatWithoutUsageCountsChunks) {
  const Outcome o =
      read({R"({"choices":[{"delta":{"role":"assistant","content":"x"}}]})",
            R"({"choices":[{"delta":{"content":null}}]})",
            R"({"choices":[{"delta":{"content":"y"},"finish_reason":"stop"}]})", "[DONE]"});
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.text, "xy");
  EXPECT_EQ(o.output_tokens, 3);
  EXPECT_EQ(o.input_tokens, 7);
}

TEST(Answer, Failures) {
  const char* chunk = R"({"choices":[{"text":"a"}]})";
  EXPECT_EQ(read({chunk}, base::error(base::Code::kIo, "gone")).error, "gone");
  EXPECT_THAT(read({chunk}).error, HasSubstr("without [DONE]"));
  EXPECT_THAT(read({"[DONE]"}).error, HasSubstr("no stream"));
  EXPECT_THAT(read({}, http::Response{.body = "{\"choices\":[{}]}"}).error, HasSubstr("no stream"));
  EXPECT_EQ(read({chunk, R"({"error":{"message":"engine died"}})", "[DONE]"}).error, "engine died");
  EXPECT_THAT(read({chunk, "{half", "[DONE]"}).error, HasSubstr("not JSON: {half"));
  EXPECT_THAT(read({chunk, "", "[DONE]"}).error, HasSubstr("not JSON"));
  EXPECT_THAT(read({R"({"choices":[{"text":"a","finish_reason":"abort"}]})", "[DONE]"}).error,
              HasSubstr("abort"));
  EXPECT_EQ(
      read({}, http::Response{.status = 429, .body = R"({"error":{"message":"full"}})"}).error,
      "HTTP 429: full");
}

TEST(Answer, OddShapesAreNoChunks) {
  for (const char* odd : {"[]", "7", "null", R"({"choices":{}})", R"({"choices":[]})",
                          R"({"usage":[1]})", R"({"usage":{"completion_tokens":"many"}})"}) {
    const Outcome o = read({odd, R"({"choices":[7]})", "[DONE]"});
    EXPECT_EQ(o.error, "") << odd;
    EXPECT_EQ(o.output_tokens, 1) << odd;
  }
}

TEST(ErrorMessage, InEveryShape) {
  EXPECT_EQ(error_message(R"({"error":{"message":"a","code":1}})"), "a");
  EXPECT_EQ(error_message(R"({"error":"Unauthorized"})"), "Unauthorized");
  EXPECT_EQ(error_message(R"({"message":"b"})"), "b");
  EXPECT_EQ(error_message(R"({"detail":"c"})"), "c");
  EXPECT_EQ(error_message("<html>"), "<html>");
  EXPECT_EQ(error_message(std::string(1000, 'x')).size(), 300u);
}

}  // namespace
}  // namespace apps
