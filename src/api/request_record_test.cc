// Goal: each request leaves one line that says who it was, what it took and how it ended, and its
// trace goes on in the answer. Method: headers by hand; then a server whose engine follows a
// script, with the log captured until the server has ended.
#include "api/request_record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/testing.h"
#include "base/log_event.h"

namespace api {
namespace {

using nlohmann::json;

constexpr const char* kTrace = "0af7651916cd43dd8448eb211c80319c";
constexpr const char* kTraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceParent, OnlyTheStandardsFormIsTaken) {
  const auto parsed = parse_trace_parent(kTraceParent);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->trace_id, kTrace);
  EXPECT_EQ(parsed->parent_id, "b7ad6b7169203331");
  EXPECT_EQ(parsed->flags, "01");
  const std::string good = kTraceParent;
  EXPECT_TRUE(parse_trace_parent("01" + good.substr(2) + "-more"))
      << "a later version may say more";
  EXPECT_EQ(parse_trace_parent(good.substr(0, 53) + "00")->flags, "00");
  EXPECT_EQ(parse_trace_parent(good.substr(0, 53) + "ff")->flags, "03") << "others are not known";
  EXPECT_EQ(parse_trace_parent("01" + good.substr(2, 51) + "a6-more")->flags, "02");
  for (const std::string& bad :
       {std::string(), good.substr(1), good + "0", good + "-more", "ff" + good.substr(2),
        "0x" + good.substr(2), "00-0AF7651916CD43DD8448EB211C80319C" + good.substr(35),
        "00-" + std::string(32, '0') + good.substr(35),
        good.substr(0, 36) + std::string(16, '0') + "-01", good.substr(0, 53) + "zz",
        std::string(55, '-'), std::string(4000, 'a')}) {
    EXPECT_FALSE(parse_trace_parent(bad)) << bad;
  }
}

class RequestLine : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(base::set_log_format("json").ok()); }
  void TearDown() override {
    EXPECT_TRUE(base::set_log_format("text").ok());
    EXPECT_TRUE(base::set_log_level("error").ok());
  }

  // Runs `ask` against a server; its request lines.
  std::vector<json> lines(const std::function<void(testing::TestServer&)>& ask,
                          const ServerOptions& options = testing::test_options()) {
    ::testing::internal::CaptureStderr();
    {
      testing::TestServer server(options);
      EXPECT_TRUE(base::set_log_level("info").ok());
      ask(server);
    }
    std::istringstream log(::testing::internal::GetCapturedStderr());
    std::vector<json> found;
    for (std::string line; std::getline(log, line);) {
      const json value = json::parse(line, nullptr, false);
      EXPECT_FALSE(value.is_discarded()) << line;
      if (!value.is_discarded() && value["message"] == "request") found.push_back(value);
    }
    return found;
  }
};

TEST_F(RequestLine, SaysWhatARequestTook) {
  std::string answer;
  const auto found = lines([&](testing::TestServer& server) {
    server.engine().cached_tokens = 3;
    answer = server.post("/v1/completions", R"({"prompt":"secret","n":2,"max_tokens":9})",
                         "Content-Type: application/json\r\nx-request-id: mine-1\r\ntraceparent: " +
                             std::string(kTraceParent) + "\r\n");
  });
  EXPECT_NE(answer.find("x-request-id: mine-1\r\n"), std::string::npos) << answer;
  const size_t at = answer.find("traceparent: 00-" + std::string(kTrace) + "-");
  ASSERT_NE(at, std::string::npos) << answer;
  ASSERT_EQ(found.size(), 1u);
  const json& line = found[0];
  EXPECT_EQ(line["request_id"], "mine-1");
  EXPECT_EQ(line["trace_id"], kTrace);
  EXPECT_EQ(line["parent_id"], "b7ad6b7169203331");
  EXPECT_EQ(line["span_id"], answer.substr(at + 49, 16));
  EXPECT_EQ(answer.substr(at + 65, 3), "-01") << "the client's decision to sample stands";
  EXPECT_EQ(line["route"], "/v1/completions");
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["finish"], "stop");
  EXPECT_EQ(line["sequences"], 2);
  EXPECT_EQ(line["prompt_tokens"], 6) << "a prompt counts once";
  EXPECT_EQ(line["cached_tokens"], 3);
  EXPECT_EQ(line["generated_tokens"], 6);
  for (const char* name : {"queue_ms", "prefill_ms", "decode_ms", "total_ms"}) {
    EXPECT_TRUE(line.contains(name)) << name;
  }
  EXPECT_EQ(line.dump().find("secret"), std::string::npos);
}

TEST_F(RequestLine, OfSeveralTracesNoneHolds) {
  const std::string trace = "traceparent: " + std::string(kTraceParent) + "\r\n";
  std::string answer;
  const auto found = lines([&](testing::TestServer& server) {
    answer = server.post("/v1/completions", R"({"prompt":"a","max_tokens":1})",
                         "Content-Type: application/json\r\n" + trace + trace);
    server.post("/nowhere", "{}", trace + trace);
  });
  EXPECT_EQ(answer.find("traceparent"), std::string::npos) << answer;
  ASSERT_EQ(found.size(), 2u);
  for (const json& line : found) EXPECT_FALSE(line.contains("trace_id")) << line;
}

TEST_F(RequestLine, FailuresHaveALineAndProbesHaveNone) {
  const auto found = lines([&](testing::TestServer& server) {
    server.get("/ready");
    server.get("/health");
    server.get("/metrics");
    server.post("/v1/completions", "{", "Content-Type: application/json\r\ntraceparent: x\r\n");
  });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0]["status"], 400);
  EXPECT_FALSE(found[0].contains("trace_id"));
  EXPECT_FALSE(found[0].contains("prompt_tokens")) << "none was made";
}

// Who is refused before a handler runs leaves the same line, without what only handlers know.
TEST_F(RequestLine, RefusalsOfTheHeadHaveALine) {
  ServerOptions options = testing::test_options();
  options.access.api_keys = {"the-key"};
  const std::string trace = "traceparent: " + std::string(kTraceParent) + "\r\n";
  const std::string key = "Authorization: Bearer the-key\r\n";
  const auto found = lines(
      [&](testing::TestServer& server) {
        server.post("/v1/chat/completions", "{}",
                    "x-request-id: mine-2\r\nAuthorization: Bearer hush\r\n" + trace);
        server.exchange(
            "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
            "2\r\n" +
            key + "\r\n{}");
        server.post("/" + std::string(300, 'p') + "?secret=hush", "{}", key);
        server.post("/v1/completions", std::string(100'001, ' '), key);
        server.exchange("NONSENSE\r\n\r\n");
      },
      options);
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0]["status"], 401);
  EXPECT_EQ(found[0]["request_id"], "mine-2");
  EXPECT_EQ(found[0]["trace_id"], kTrace);
  EXPECT_EQ(found[0]["method"], "POST");
  EXPECT_EQ(found[0]["route"], "/v1/chat/completions");
  EXPECT_TRUE(found[0].contains("total_ms"));
  EXPECT_EQ(found[1]["status"], 415);
  EXPECT_EQ(found[2]["status"], 404);
  EXPECT_EQ(found[2]["route"], "");
  EXPECT_EQ(found[2]["path"], "/" + std::string(127, 'p'));
  EXPECT_EQ(found[3]["status"], 413);
  EXPECT_EQ(found[4]["status"], 400);
  for (const json& line : found) {
    EXPECT_EQ(line.dump().find("hush"), std::string::npos) << line;
    EXPECT_FALSE(line.contains("left_out")) << line;
  }
}

// So many at once, then one in each interval, which says how many had none.
TEST(RefusalLines, AFloodLeavesFew) {
  RefusalLines lines;
  const int64_t start_us = 5'000'000'000;
  for (int i = 0; i < RefusalLines::kBurst; ++i) EXPECT_EQ(lines.take(start_us + i), 0) << i;
  int64_t written = 0, told = 0;
  constexpr int64_t kFlood = 100'000, kSeconds = 10;
  for (int64_t i = 1; i <= kFlood; ++i) {
    const auto left_out = lines.take(start_us + i * kSeconds * RefusalLines::kIntervalUs / kFlood);
    written += left_out.has_value();
    told += left_out.value_or(0);
  }
  EXPECT_EQ(written, kSeconds);
  EXPECT_EQ(told + written, kFlood) << "the last of the flood is written";
  const int64_t later_us = start_us + 1000 * RefusalLines::kIntervalUs;
  for (int i = 0; i < RefusalLines::kBurst; ++i) EXPECT_EQ(lines.take(later_us), 0) << i;
  EXPECT_FALSE(lines.take(later_us)) << "quiet hours save no more than that";
}

TEST_F(RequestLine, CanBeTurnedOff) {
  ServerOptions options = testing::test_options();
  options.log_requests = false;
  const auto found = lines(
      [&](testing::TestServer& server) {
        server.post("/v1/completions", R"({"prompt":"a"})", "Content-Type: application/json\r\n");
        server.get("/nowhere");
      },
      options);
  EXPECT_TRUE(found.empty());
}

// A client that leaves is in the log, too, with what had been made for it.
TEST_F(RequestLine, AClientThatLeavesIsAnAbort) {
  const auto found = lines([&](testing::TestServer& server) {
    server.engine().hold = true;
    http::testing::RawClient client(server.port());
    client.send(testing::TestServer::post_bytes("/v1/completions", R"({"prompt":"abc"})",
                                                "Content-Type: application/json\r\n"));
    const auto sequences = server.engine().wait_for_submitted(1);
    client.disconnect();
    server.engine().wait_for_cancelled(1);
  });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0]["status"], 499);
  EXPECT_EQ(found[0]["finish"], "abort");
  EXPECT_EQ(found[0]["generated_tokens"], 0);
}

TEST_F(RequestLine, AStreamThatIsLeftIsNoSuccess) {
  std::string metrics;
  const auto found = lines([&](testing::TestServer& server) {
    server.engine().hold = true;
    http::testing::RawClient client(server.port());
    client.send(testing::TestServer::post_bytes("/v1/completions",
                                                R"({"prompt":"abc","stream":true})",
                                                "Content-Type: application/json\r\n"));
    const auto sequences = server.engine().wait_for_submitted(1);
    testing::FakeEngine::push_start(sequences[0].request, *sequences[0].events, 0);
    testing::FakeEngine::push_token(sequences[0].request, *sequences[0].events, 'z');
    client.read_until("\"z\"");
    client.disconnect();
    server.engine().wait_for_cancelled(1);
    while (metrics.find("status=\"499\"} 1") == std::string::npos) metrics = server.get("/metrics");
  });
  ASSERT_GE(found.size(), 1u);
  EXPECT_EQ(found[0]["status"], 499);
  EXPECT_EQ(found[0]["finish"], "abort");
}

}  // namespace
}  // namespace api
