// Bodies that mean harm, over HTTP and through the whole of api/: whatever they hold, the answer is
// an error in JSON that repeats no more of them than a line, and the next request is served.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/testing.h"

namespace api {
namespace {

using testing::body_of;
using testing::TestServer;

constexpr size_t kBodyBytes = 2 << 20;

ServerOptions options_for_large_bodies() {
  ServerOptions options = testing::test_options();
  options.limits.body_bytes_max = 2 * kBodyBytes;
  return options;
}

std::string repeated(const std::string& unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += unit;
  return out;
}

void expect_refused(TestServer& server, const char* path, const std::string& body,
                    const std::string& what) {
  const std::string answer = server.post(path, body);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << what << ": " << answer.substr(0, 400);
  EXPECT_LT(answer.size(), 2000u) << what;
  EXPECT_FALSE(nlohmann::json::parse(body_of(answer), nullptr, false).is_discarded()) << what;
}

TEST(HostileBodies, LargeAndNested) {
  TestServer server(options_for_large_bodies());
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
    const std::string name = path;
    expect_refused(server, path, repeated("[", kBodyBytes), name + " brackets");
    expect_refused(server, path, repeated("{\"a\":", kBodyBytes), name + " objects");
    expect_refused(server, path, "{\"prompt\":" + repeated("[", 65) + repeated("]", 65) + "}",
                   name + " 65 deep");
    expect_refused(server, path, repeated("\"", kBodyBytes), name + " quotes");
    expect_refused(server, path, repeated("\\", kBodyBytes), name + " backslashes");
    expect_refused(server, path, std::string(kBodyBytes, '\0'), name + " NULs");
    expect_refused(server, path, repeated("\xFF\xFE", kBodyBytes), name + " no UTF-8");
    expect_refused(server, path, "\xEF\xBB\xBF\xEF\xBB\xBF{}", name + " marks");
    expect_refused(server, path, repeated("1", kBodyBytes), name + " one number");
    expect_refused(server, path,
                   R"({"prompt":"a","prompt":"b","messages":1,"messages":2,"tokens":1,"tokens":2})",
                   name + " fields given twice");
  }
  EXPECT_TRUE(server.post("/v1/completions", R"({"prompt":"a"})").starts_with("HTTP/1.1 200"));
}

// The depth that is allowed, and one more.
TEST(HostileBodies, DepthHoldsOnBothSides) {
  TestServer server;
  const auto nested = [](size_t depth) {
    return "{\"prompt\":\"a\",\"x\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_TRUE(server.post("/v1/completions", nested(62)).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(server.post("/v1/completions", nested(65)).starts_with("HTTP/1.1 400"));
}

TEST(HostileBodies, ManySmallThings) {
  TestServer server(options_for_large_bodies());
  std::string fields = "{\"prompt\":\"a\"";
  for (int i = 0; i < 100'000; ++i) fields += ",\"f" + std::to_string(i) + "\":0";
  EXPECT_TRUE(server.post("/v1/completions", fields + "}").starts_with("HTTP/1.1 "));
  std::string messages;
  while (messages.size() < kBodyBytes) messages += R"({"role":"user","content":"a"},)";
  messages.pop_back();
  expect_refused(server, "/v1/chat/completions", "{\"messages\":[" + messages + "]}", "messages");
  expect_refused(server, "/v1/completions",
                 "{\"prompt\":[" + repeated("\"a\",", kBodyBytes) + "\"a\"]}", "prompts");
  expect_refused(server, "/v1/completions", "{\"prompt\":[" + repeated("1,", kBodyBytes) + "1]}",
                 "ids");
  expect_refused(server, "/v1/completions",
                 "{\"prompt\":\"" + repeated("\\u0000", kBodyBytes) + "\"}",
                 "a long prompt of escapes");
  EXPECT_TRUE(server.post("/v1/completions", R"({"prompt":"a"})").starts_with("HTTP/1.1 200"));
}

// What clients choose comes back in errors, but never as a header and never at length.
TEST(HostileBodies, EchoesAreShortAndHarmless) {
  TestServer server(options_for_large_bodies());
  const std::string name = repeated("x", 100'000);
  for (const std::string& body : {"{\"prompt\":\"a\",\"model\":\"" + name + "\"}",
                                  "{\"prompt\":\"a\",\"temperature\":\"" + name + "\"}",
                                  "{\"prompt\":\"a\",\"" + name + "\":1,\"top_p\":9}"}) {
    const std::string answer = server.post("/v1/completions", body);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 4")) << answer.substr(0, 300);
    EXPECT_LT(answer.size(), 2000u);
  }
  const std::string path = server.get("/" + std::string(3000, 'p'));
  EXPECT_TRUE(path.starts_with("HTTP/1.1 404"));
  EXPECT_LT(path.size(), 1500u);
  const std::string broken = server.get("/\xFF\xC0");
  EXPECT_FALSE(nlohmann::json::parse(body_of(broken), nullptr, false).is_discarded()) << broken;
}

// What of a request's head comes back in an answer's: it is one line there, or is not there.
TEST(HostileBodies, NoEchoBeginsAHeader) {
  ServerOptions options = options_for_large_bodies();
  options.access.allowed_origins = {"http://app.example", "*"};
  TestServer server(options);
  constexpr std::string_view kTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const std::vector<std::pair<std::string, std::string>> echoed = {
      {"X-Request-Id", "id"},
      {"traceparent", std::string(kTrace)},
      {"Origin", "http://app.example"},
      {"Access-Control-Request-Headers", "x-a"}};
  for (const auto& [name, value] : echoed) {
    for (const std::string& tail :
         {std::string("\rx-evil: 1"), std::string("\nx-evil: 1"), std::string("\r\n x-evil: 1"),
          std::string("\r\n\tx-evil: 1"), std::string("\0x-evil: 1", 11), std::string("\r\r\nx"),
          std::string("\x7Fx"), std::string("\x0Bx-evil: 1"), std::string("%0d%0ax-evil: 1")}) {
      for (const char* start : {"POST", "OPTIONS"}) {
        const std::string answer = server.exchange(
            start + std::string(" /v1/completions HTTP/1.1\r\nHost: localhost\r\n") +
            "Connection: close\r\nAccess-Control-Request-Method: POST\r\nContent-Length: 0\r\n" +
            name + ": " + value + tail + "\r\n\r\n");
        ASSERT_TRUE(answer.starts_with("HTTP/1.1 ")) << name << tail;
        const std::string head = answer.substr(0, answer.find("\r\n\r\n"));
        for (const char* line : {"\nx-evil", "\rx-evil", "\n x-evil"})
          EXPECT_EQ(head.find(line), std::string::npos) << head;
        for (size_t i = 0; i < head.size(); ++i) {
          const bool ends = head[i] == '\r' && head.substr(i, 2) == "\r\n";
          const bool ended = head[i] == '\n' && i > 0 && head[i - 1] == '\r';
          EXPECT_TRUE(ends || ended || (head[i] >= ' ' && head[i] != 0x7F)) << head;
        }
      }
    }
  }
  EXPECT_TRUE(server.get("/health").starts_with("HTTP/1.1 200"));
}

// Bodies of clients that left are freed: ten times the limit of all of them goes through.
TEST(HostileBodies, MemoryOfBodiesComesBack) {
  ServerOptions options = options_for_large_bodies();
  options.limits.bodies_bytes_max = 8 << 20;
  TestServer server(options);
  const std::string body = repeated("[", kBodyBytes);
  for (int i = 0; i < 40; ++i) {
    http::testing::RawClient client(server.port());
    client.send(TestServer::post_bytes("/v1/completions", body).substr(0, kBodyBytes - 1000));
    if (i % 2 == 0) client.reset();
  }
  std::string answer;
  for (int i = 0; i < 100 && !answer.starts_with("HTTP/1.1 400"); ++i)
    answer = server.post("/v1/completions", body);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << answer.substr(0, 200);
}

}  // namespace
}  // namespace api
