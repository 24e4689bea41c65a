// Who may ask: the policy alone, on heads of requests (keys, Host, Origin, type of the body, CORS),
// then a running server, where a refusal must come before the body is read and on every path.
#include "api/access.h"

#include <gtest/gtest.h>

#include "api/testing.h"

namespace api {
namespace {

using testing::kEnd;
using testing::TestServer;

constexpr const char* kBody = R"({"prompt":"a"})";

class Policy {
 public:
  explicit Policy(const AccessOptions& options, std::string_view bound = "127.0.0.1")
      : policy_(options, bound) {
    EXPECT_TRUE(check_access_options(options).ok());
    policy_.set_route("/health", Access::kProbe);
    policy_.set_route("/metrics", Access::kOpen);
    policy_.set_route("/asked", Access::kKeyed);
  }
  http::Verdict judge(const char* method, const char* path, std::vector<http::Header> headers) {
    http::Request head{.method = method, .path = path, .headers = std::move(headers)};
    const bool known = head.path == "/health" || head.path == "/metrics" || head.path == "/asked";
    return policy_.judge(head, known ? path : "");
  }
  // 200: the route may answer.
  int status(const char* method, const char* path, std::vector<http::Header> headers) {
    const http::Verdict verdict = judge(method, path, std::move(headers));
    return verdict.answer ? verdict.answer->status : 200;
  }
  int get(std::vector<http::Header> headers) { return status("GET", "/asked", std::move(headers)); }

 private:
  AccessPolicy policy_;
};

std::string header_of(const std::vector<http::Header>& headers, std::string_view name) {
  http::Request request{.headers = headers};
  return std::string(request.header(name).value_or("(none)"));
}

TEST(AccessKeys, EachKeyOpensByEitherHeader) {
  Policy policy({.api_keys = {"first", "second"}});
  for (const char* key : {"first", "second"}) {
    EXPECT_EQ(policy.get({{"Authorization", std::string("Bearer ") + key}}), 200);
    EXPECT_EQ(policy.get({{"authorization", std::string("bearer  ") + key}}), 200);
    EXPECT_EQ(policy.get({{"X-Api-Key", key}}), 200);
    EXPECT_EQ(policy.get({{"Authorization", "Bearer other"}, {"x-api-key", key}}), 200);
  }
}

TEST(AccessKeys, NothingElseDoes) {
  Policy policy({.api_keys = {"first", "second"}});
  for (const char* value : {"Bearer ", "Bearer", "Bearer firs", "Bearer firstt", "Basic first",
                            "first", "Bearer first second", "Bearer FIRST"}) {
    EXPECT_EQ(policy.get({{"Authorization", value}}), 401) << value;
  }
  EXPECT_EQ(policy.get({}), 401);
  EXPECT_EQ(policy.get({{"x-api-key", ""}}), 401);
}

TEST(AccessKeys, OnlyProbesAndMetricsAreOpen) {
  Policy policy({.api_keys = {"k"}});
  EXPECT_EQ(policy.status("GET", "/health", {}), 200);
  EXPECT_EQ(policy.status("GET", "/metrics", {}), 200);
  EXPECT_EQ(policy.status("GET", "/asked", {{"Host", "127.0.0.1"}}), 401);
  EXPECT_EQ(policy.status("GET", "/nowhere", {}), 401);  // what exists is not told either
  EXPECT_EQ(policy.status("GET", "/health/../asked", {}), 401);
}

TEST(AccessKeys, WithAKeyHostAndOriginAreFree) {
  Policy policy({.api_keys = {"k"}});
  EXPECT_EQ(policy.get({{"x-api-key", "k"}, {"Host", "evil"}, {"Origin", "http://evil"}}), 200);
}

TEST(AccessKeys, ThatCouldNeverBeSentAreRefused) {
  for (const std::string_view key : {"", "with blank", "tab\t", "\xC3\xA9", "k\r\nx-b: 2", "k\n"}) {
    EXPECT_EQ(check_access_options({.api_keys = {std::string(key)}}).error().code,
              base::Code::kInvalidArgument);
  }
  EXPECT_FALSE(check_access_options({.api_keys = {std::string("k\0", 2)}}).ok());
  EXPECT_TRUE(check_access_options({.api_keys = {std::string(1024, 'k')}}).ok());
  const auto over = check_access_options({.api_keys = {std::string(1025, 'k')}});
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.error().message.find("kkk"), std::string::npos) << "keys are not shown";
}

TEST(AccessKeys, FileHasOneALine) {
  EXPECT_EQ(parse_key_file("one\n# two\n\n  three \r\n\t#four\nfive"),
            (std::vector<std::string>{"one", "three", "five"}));
  EXPECT_TRUE(parse_key_file("\n#\n").empty());
}

TEST(AccessHosts, OwnNamesAndAddressesAreOurs) {
  Policy policy({.allowed_hosts = {"LLM.example", "gpu1:8000"}}, "myhost");
  for (const char* host : {"localhost", "localhost:8000", "LOCALHOST:1", "localhost.", "127.0.0.1",
                           "127.0.0.1:8000", "[::1]", "[::1]:8000", "10.0.0.7:80", "[fe80::1]:8000",
                           "myhost:8000", "llm.example", "llm.example:443", "gpu1", "gpu1:9999"}) {
    EXPECT_EQ(policy.get({{"Host", host}}), 200) << host;
  }
  EXPECT_EQ(policy.get({}), 200);  // no browser
}

TEST(AccessHosts, ForeignNamesAreRefused) {
  Policy policy({});
  for (const char* host :
       {"evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "",
        "[::1", "localhost:x", "localhost:8000:1", "localhost@evil", "x.localhost", "2130706433"}) {
    EXPECT_EQ(policy.get({{"Host", host}}), 403) << host;
    EXPECT_EQ(policy.status("GET", "/metrics", {{"Host", host}}), 403) << host;
    EXPECT_EQ(policy.status("GET", "/nowhere", {{"Host", host}}), 403) << host;
    EXPECT_EQ(policy.status("GET", "/health", {{"Host", host}}), 200) << host;
  }
  Policy any({.allowed_hosts = {"*"}});
  EXPECT_EQ(any.get({{"Host", "evil.example"}}), 200);
}

TEST(AccessOrigins, OwnPagesMayAskForeignOnesMayNot) {
  Policy policy({});
  const auto asked = [&](const char* host, const char* origin) {
    return policy.get({{"Host", host}, {"Origin", origin}});
  };
  EXPECT_EQ(asked("localhost:8000", "http://localhost:8000"), 200);
  EXPECT_EQ(asked("127.0.0.1:8000", "http://127.0.0.1:8000"), 200);
  EXPECT_EQ(asked("localhost", "http://localhost"), 200);
  EXPECT_EQ(asked("localhost:80", "http://LOCALHOST"), 200);
  EXPECT_EQ(asked("localhost", "https://localhost:443"), 200);
  for (const char* origin : {"http://evil.example", "http://localhost:3000", "null", "",
                             "http://127.0.0.1:8000", "https://localhost.evil:8000", "file://"}) {
    EXPECT_EQ(asked("localhost:8000", origin), 403) << origin;
  }
}

TEST(AccessTypes, BodiesMustBeJson) {
  Policy policy({});
  const auto posted = [&](std::vector<http::Header> headers) {
    headers.push_back({"Content-Length", "2"});
    return policy.status("POST", "/asked", std::move(headers));
  };
  EXPECT_EQ(posted({{"Content-Type", "application/json"}}), 200);
  EXPECT_EQ(posted({{"content-type", "Application/JSON ; charset=utf-8"}}), 200);
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded", "",
                           "application/jsonx", "text/plain; application/json"}) {
    EXPECT_EQ(posted({{"Content-Type", type}}), 415) << type;
  }
  EXPECT_EQ(posted({}), 415);
  for (const char* coding : {"gzip", "identity, gzip", "br"})
    EXPECT_EQ(posted({{"Content-Type", "application/json"}, {"Content-Encoding", coding}}), 415);
  EXPECT_EQ(posted({{"Content-Type", "application/json"}, {"Content-Encoding", "Identity"}}), 200);
  EXPECT_EQ(policy.status("POST", "/asked", {{"Transfer-Encoding", "chunked"}}), 415);
  EXPECT_EQ(policy.status("POST", "/asked", {{"Content-Length", "0"}}), 200);
  EXPECT_EQ(policy.status("POST", "/asked", {}), 200);
}

TEST(AccessCors, OffByDefault) {
  for (const AccessOptions& options : {AccessOptions{}, AccessOptions{.api_keys = {"k"}}}) {
    Policy policy(options);
    const auto verdict =
        policy.judge("OPTIONS", "/asked",
                     {{"Origin", "http://a.example"}, {"Access-Control-Request-Method", "POST"}});
    ASSERT_TRUE(verdict.answer);
    EXPECT_EQ(verdict.answer->status, 403);
    EXPECT_TRUE(verdict.headers.empty());
    EXPECT_TRUE(policy.judge("GET", "/metrics", {{"Origin", "http://a.example"}}).headers.empty());
  }
}

TEST(AccessCors, AllowedOriginsMayAskAndRead) {
  Policy policy({.api_keys = {"k"}, .allowed_origins = {"https://App.example:443"}});
  const http::Header origin{"Origin", "https://app.example"};
  const auto preflight =
      policy.judge("OPTIONS", "/asked",
                   {origin,
                    {"Access-Control-Request-Method", "POST"},
                    {"Access-Control-Request-Headers", "authorization, x-stainless-os"},
                    {"Access-Control-Request-Private-Network", "true"}});
  ASSERT_TRUE(preflight.answer);
  EXPECT_EQ(preflight.answer->status, 204);
  EXPECT_EQ(header_of(preflight.headers, "Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_EQ(header_of(preflight.headers, "Vary"), "Origin");
  const auto& more = preflight.answer->headers;
  EXPECT_EQ(header_of(more, "Access-Control-Allow-Headers"), "authorization, x-stainless-os");
  EXPECT_EQ(header_of(more, "Access-Control-Allow-Private-Network"), "true");
  const auto refused =
      policy.judge("GET", "/asked", {origin});  // readable, so that pages can say why
  ASSERT_TRUE(refused.answer);
  EXPECT_EQ(refused.answer->status, 401);
  EXPECT_EQ(header_of(refused.headers, "Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_TRUE(policy.judge("GET", "/asked", {{"Origin", "http://app.example"}}).headers.empty());
}

TEST(AccessCors, WithoutKeysAnAllowedOriginIsNotForeign) {
  Policy one({.allowed_origins = {"http://localhost:3000"}});
  EXPECT_EQ(one.get({{"Host", "localhost:8000"}, {"Origin", "http://localhost:3000"}}), 200);
  EXPECT_EQ(one.get({{"Host", "evil"}, {"Origin", "http://localhost:3000"}}), 403);
  Policy any({.allowed_origins = {"*"}});
  EXPECT_EQ(any.get({{"Host", "localhost:8000"}, {"Origin", "null"}}), 200);
}

TEST(AccessOptionsCheck, NamesAndOriginsHaveTheirForm) {
  for (const char* host : {"", "a/b", "http://a", "a:b", "u@a", "a\r\nb", "a\n", "a b"})
    EXPECT_FALSE(check_access_options({.allowed_hosts = {host}}).ok()) << host;
  for (const char* origin : {"", "app.example", "https://", "https://a/b", "https://u@a",
                             "https://a\r\nX-B: c", "https://a\n"})
    EXPECT_FALSE(check_access_options({.allowed_origins = {origin}}).ok()) << origin;
}

TEST(AccessBinding, LoopbackIsKnown) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"})
    EXPECT_TRUE(is_loopback_address(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "127.evil", "::2"})
    EXPECT_FALSE(is_loopback_address(host)) << host;
}

// ---- the server

TEST(AccessServer, RefusalComesBeforeTheBody) {
  ServerOptions options = testing::test_options();
  options.access.api_keys = {"k"};
  TestServer server(options);
  http::testing::RawClient client(server.port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-request-id: r7\r\nContent-Length: "
      "90000\r\n\r\n");
  const std::string answer = client.read_response();  // not a byte of the body has been sent
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 401")) << answer;
  EXPECT_NE(answer.find("x-request-id: r7\r\n"), std::string::npos);
  EXPECT_NE(answer.find("WWW-Authenticate: Bearer\r\n"), std::string::npos);
  EXPECT_NE(answer.find("Connection: close\r\n"), std::string::npos);
}

TEST(AccessServer, RefusalWithoutABodyKeepsTheConnection) {
  ServerOptions options = testing::test_options();
  options.access.api_keys = {"k"};
  TestServer server(options);
  http::testing::RawClient client(server.port());
  client.send(
      "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: "
      "localhost\r\nx-api-key: k\r\n\r\n");
  EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 200"));
}

TEST(AccessServer, ForeignHostAndOriginAndForms) {
  TestServer server;
  const std::string path = "/v1/completions";
  EXPECT_TRUE(server.post(path, kBody, "Host: localhost:1\r\n").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(server.post(path, kBody, "Host: evil.example\r\n").starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(server.post(path, kBody, "Host: localhost\r\nOrigin: http://evil.example\r\n")
                  .starts_with("HTTP/1.1 403"));
  // A target with a name of its own stands above the Host.
  EXPECT_TRUE(server
                  .exchange("GET http://evil.example/version HTTP/1.1\r\nHost: localhost\r\n"
                            "Connection: close\r\n\r\n")
                  .starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(
      server
          .exchange(
              "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
              "Content-Length: 14\r\n\r\n" +
              std::string(kBody))
          .starts_with("HTTP/1.1 415"));
  EXPECT_TRUE(server.engine().wait_for_submitted(1).size() == 1);
}

TEST(AccessServer, CorsHeadersAreOnEveryAnswer) {
  ServerOptions options = testing::test_options();
  options.access.allowed_origins = {"http://app.example"};
  TestServer server(options);
  const std::string allowed = "Access-Control-Allow-Origin: http://app.example\r\n";
  const std::string origin = "Origin: http://app.example\r\n";
  for (const char* body : {kBody, "{", R"({"prompt":"a","stream":true})"})
    EXPECT_NE(server.post("/v1/completions", body, origin).find(allowed), std::string::npos)
        << body;
  EXPECT_NE(server.post("/nowhere", kBody, origin).find(allowed), std::string::npos);
  const std::string too_large(100'001, ' ');
  EXPECT_NE(server.post("/v1/completions", too_large, origin).find(allowed), std::string::npos);
  const std::string preflight = server.exchange(
      "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + origin +
      "Access-Control-Request-Method: POST\r\n\r\n");
  EXPECT_TRUE(preflight.starts_with("HTTP/1.1 204 No Content\r\n")) << preflight;
  EXPECT_EQ(preflight.find("Content-Length"), std::string::npos);
  EXPECT_NE(preflight.find(allowed), std::string::npos);
}

std::string logged_while_asked(int64_t log_prompt_bytes) {
  ::testing::internal::CaptureStderr();
  {
    ServerOptions options = testing::test_options();
    options.log_prompt_bytes = log_prompt_bytes;
    TestServer server(options);
    base::set_log_level("trace").value();
    server.engine().reply = {'s', 'e', 'c', 'r', 'e', 't', kEnd};
    for (const char* body : {R"({"prompt":"secret"})", R"({"prompt":"secret)", R"({"secret":1})",
                             R"({"prompt":"a","stop":"secret","stream":true})",
                             R"({"prompt":"a","temperature":"secret"})"})
      server.post("/v1/completions", body);
    server.post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"secret"}]})");
    server.post("/v1/chat/completions", R"({"messages":[{"role":"secret","content":["secret"]}]})");
    server.post("/tokenize", R"({"prompt":"secret"})");
    server.engine().fails = "lost";
    server.post("/v1/completions", R"({"prompt":"secret"})");
  }
  base::set_log_level("error").value();
  return ::testing::internal::GetCapturedStderr();
}

TEST(AccessServer, PromptsAreLoggedOnlyWhenAsked) {
  std::string quiet = logged_while_asked(0);
  EXPECT_NE(quiet.find("/v1/completions"), std::string::npos) << "the log is being caught";
  // The name of an unknown field is the one thing of a body that may be there.
  const size_t name = quiet.find("\"secret\"");
  if (name != quiet.npos) quiet.erase(name, 8);
  EXPECT_EQ(quiet.find("secret"), std::string::npos) << quiet;
  EXPECT_NE(logged_while_asked(15).find(R"({\"prompt\":\"secr")"), std::string::npos);
}

}  // namespace
}  // namespace api
