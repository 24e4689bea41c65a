// The client against the server of this folder: whole answers, kept-alive connections, streams cut
// anywhere, and what it says when the other side fails.
#include "http/client.h"

#include <gtest/gtest.h>

#include <thread>

#include "http/server.h"
#include "http/sse.h"

namespace http {
namespace {

using std::chrono::milliseconds;

Task<void> echo(Exchange& exchange) {
  Response response;
  response.body = std::move(exchange.request().body);
  co_await exchange.respond(std::move(response));
}

Task<void> count(Exchange& exchange) {
  StreamHead head;
  co_await exchange.begin_stream(std::move(head));
  std::string bytes(kPingEvent);
  for (int i = 0; i < 100; ++i) append_event(bytes, std::to_string(i));
  bytes += kDoneEvent;
  for (const char& c : bytes) {
    if (!co_await exchange.write({&c, 1})) co_return;
  }
}

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Router router;
    router.add("POST", "/echo", echo);
    router.add("GET", "/count", count);
    router.add("GET", "/silent", [](Exchange& exchange) -> Task<void> {
      while (!exchange.gone()) co_await exchange.wait(milliseconds(10'000));
    });
    ServerOptions options;
    options.make_error = [](Refusal, const Request&, const std::string& message) {
      return Response{.status = 404, .content_type = "text/plain", .body = message};
    };
    server_ = std::make_unique<Server>(std::move(options), std::move(router));
    ASSERT_TRUE(server_->listen("127.0.0.1", 0).ok());
    thread_ = std::thread([this] { server_->run(); });
  }
  void TearDown() override {
    server_->stop();
    thread_.join();
  }
  Client client(milliseconds timeout = milliseconds(20'000)) {
    return {"127.0.0.1", server_->port(), timeout};
  }

  std::unique_ptr<Server> server_;
  std::thread thread_;
};

TEST_F(ClientTest, WholeAnswersOverOneConnection) {
  Client c = client();
  const std::string megabytes(3 << 20, 'x');
  for (const std::string& body : {std::string("a"), megabytes, std::string()}) {
    const auto answer = c.call({.method = "POST", .path = "/echo", .body = body});
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, body);
    EXPECT_EQ(answer->content_type, "application/json");
  }
  EXPECT_EQ(c.call({.path = "/nowhere"}).value().status, 404);
}

TEST_F(ClientTest, StreamsCutAnywhere) {
  Client c = client();
  for (int round = 0; round < 2; ++round) {
    std::vector<std::string> events;
    const auto answer = c.stream({.path = "/count"}, [&](std::string_view data) {
      events.emplace_back(data);
      return true;
    });
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    ASSERT_EQ(events.size(), 101u);
    EXPECT_EQ(events[99], "99");
    EXPECT_EQ(events[100], "[DONE]");
  }
}

TEST_F(ClientTest, StreamMayBeLeftAndErrorsComeWhole) {
  Client c = client();
  int seen = 0;
  ASSERT_TRUE(c.stream({.path = "/count"}, [&](std::string_view) { return ++seen < 3; }).ok());
  EXPECT_EQ(seen, 3);
  const auto answer = c.stream({.path = "/nowhere"}, [](std::string_view) { return true; });
  EXPECT_EQ(answer.value().status, 404);
  EXPECT_EQ(answer.value().body, "GET /nowhere does not exist.");
}

TEST_F(ClientTest, FailuresAreErrors) {
  Client late = client(milliseconds(50));
  EXPECT_NE(late.call({.path = "/silent"}).error().message.find("timed out"), std::string::npos);
  Client nowhere("127.0.0.1", 1, milliseconds(1000));
  EXPECT_EQ(nowhere.call({.path = "/"}).error().code, base::Code::kIo);
  Client unknown("no.such.host.invalid", 1, milliseconds(1000));
  EXPECT_EQ(unknown.call({.path = "/"}).error().code, base::Code::kIo);
}

}  // namespace
}  // namespace http
