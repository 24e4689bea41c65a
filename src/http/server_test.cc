// Bytes in, bytes out: a server with small limits on a thread of its own, and clients that send
// exact bytes. Checks framing for HTTP/1.1 and 1.0, limits on both sides, pipelining, disconnects
// seen while nothing is written, slow readers and the drain.
#include "http/server.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "http/sse.h"
#include "http/testing.h"

namespace http {
namespace {

using std::chrono::milliseconds;
using testing::RawClient;

constexpr milliseconds kLong{20'000};

ServerLimits small_limits() {
  ServerLimits limits;
  limits.header_bytes_max = 4096;
  limits.body_bytes_max = 100'000;
  limits.bodies_bytes_max = 250'000;
  limits.connections_max = 40;
  return limits;
}

Response make_error(Refusal refusal, const Request& request, const std::string& message) {
  static constexpr int kStatus[] = {400, 404, 405, 413, 431, 503, 500};
  Response response;
  response.status = kStatus[static_cast<int>(refusal)];
  response.headers.push_back({"x-refused", request.method + " " + request.path});
  response.body = message;
  return response;
}

class ServerTest : public ::testing::Test {
 protected:
  void start(ServerLimits limits = small_limits()) {
    Router router;
    router.add("POST", "/echo", [](Exchange& exchange) -> Task<void> {
      Response response;
      response.body = std::move(exchange.request().body);
      co_await exchange.respond(std::move(response));
    });
    router.add("GET", "/hello", [](Exchange& exchange) -> Task<void> {
      exchange.set_header("x-request-id", "7");
      Response response;
      response.body = "hello " + exchange.request().query;
      co_await exchange.respond(std::move(response));
    });
    router.add("GET", "/stream",
               [](Exchange& exchange) -> Task<void> { return stream_three(exchange); });
    router.add("GET", "/silent", [this](Exchange& exchange) { return wait_for_leaving(exchange); });
    router.add("GET", "/flood", [this](Exchange& exchange) { return flood(exchange); });
    router.add("GET", "/throw", [](Exchange&) -> Task<void> {
      throw std::runtime_error("lost");
      co_return;
    });
    router.add("GET", "/woken", [this](Exchange& exchange) { return wait_for_wake(exchange); });
    ServerOptions options{.limits = limits, .make_error = make_error};
    options.on_answer = [this](const Request&, std::string_view route, int status, int64_t) {
      std::lock_guard lock(mutex_);
      answers_.emplace_back(std::string(route), status);
    };
    server_ = std::make_unique<Server>(std::move(options), std::move(router));
    ASSERT_TRUE(server_->listen("127.0.0.1", 0).ok());
    thread_ = std::thread([this] { server_->run(); });
  }
  void TearDown() override {
    if (server_) server_->stop();
    if (thread_.joinable()) thread_.join();
  }

  static Task<void> stream_three(Exchange& exchange) {
    StreamHead head;
    co_await exchange.begin_stream(std::move(head));
    for (const char* word : {"one", "two", "three"}) {
      std::string event;
      append_event(event, word);
      co_await exchange.write(event);
    }
    co_await exchange.write(kDoneEvent);
  }
  Task<void> wait_for_leaving(Exchange& exchange) {
    silent_started_.set_value();
    while (!exchange.gone()) co_await exchange.wait(kLong);
    left_.set_value();
  }
  Task<void> flood(Exchange& exchange) {
    StreamHead head;
    co_await exchange.begin_stream(std::move(head));
    const std::string megabyte(1 << 20, 'x');
    while (co_await exchange.write(megabyte)) flooded_mb_.fetch_add(1);
    left_.set_value();
  }
  Task<void> wait_for_wake(Exchange& exchange) {
    std::thread([wake = exchange.waker()] { wake(); }).detach();
    Response response;
    response.body = co_await exchange.wait(kLong) ? "woken" : "slept";
    late_wake_ = exchange.waker();
    co_await exchange.respond(std::move(response));
  }

  std::string ask(const std::string& bytes) {
    RawClient client(server_->port());
    client.send(bytes);
    return client.read_response();
  }

  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::promise<void> silent_started_, left_;
  std::atomic<int> flooded_mb_{0};
  std::function<void()> late_wake_;
  std::mutex mutex_;
  std::vector<std::pair<std::string, int>> answers_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ServerTest, AnswersWithLengthTypeAndHeaders) {
  start();
  const std::string answer = ask("GET /hello?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_TRUE(has(answer, "Content-Type: application/json\r\n"));
  EXPECT_TRUE(has(answer, "x-request-id: 7\r\n"));
  EXPECT_TRUE(has(answer, "\r\n\r\nhello a=b"));
  EXPECT_FALSE(has(answer, "Connection: close"));
}

TEST_F(ServerTest, AbsoluteFormIsReducedToItsPath) {
  start();
  EXPECT_TRUE(has(ask("GET http://h:1/hello?q HTTP/1.1\r\nHost: x\r\n\r\n"), "hello q"));
}

TEST_F(ServerTest, HeadHasTheHeadersOnly) {
  start();
  RawClient client(server_->port());
  client.send("HEAD /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_TRUE(has(answer, "Content-Length: 6\r\n")) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

TEST_F(ServerTest, StreamsAreChunkedEventsWithLineFeeds) {
  start();
  RawClient client(server_->port());
  client.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::string head = client.read_until("\r\n\r\n");
  EXPECT_TRUE(has(head, "Transfer-Encoding: chunked\r\n"));
  EXPECT_TRUE(has(head, "Content-Type: text/event-stream; charset=utf-8\r\n"));
  EXPECT_EQ(client.read_until("0\r\n\r\n"),
            "b\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\nd\r\ndata: three\n\n\r\ne\r\ndata: "
            "[DONE]\n\n\r\n0\r\n\r\n");
  client.send("GET /hello HTTP/1.1\r\nHost: h\r\n\r\n");  // the connection is still usable
  EXPECT_TRUE(has(client.read_response(), "hello"));
}

TEST_F(ServerTest, OldClientsGetNoChunks) {
  start();
  RawClient client(server_->port());
  client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_TRUE(answer.starts_with("HTTP/1.0 200 OK\r\n")) << answer;
  EXPECT_TRUE(has(answer, "Connection: close\r\n"));
  EXPECT_FALSE(has(answer, "chunked"));
  EXPECT_TRUE(
      answer.ends_with("\r\n\r\ndata: one\n\ndata: two\n\ndata: three\n\ndata: [DONE]\n\n"));
}

TEST_F(ServerTest, OldClientsKeepAliveOnlyWhenTheyAsk) {
  start();
  RawClient closing(server_->port());
  closing.send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(has(closing.read_all(), "Connection: close\r\n"));
  RawClient keeping(server_->port());
  for (int i = 0; i < 2; ++i) {
    keeping.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_TRUE(has(keeping.read_response(), "Connection: keep-alive\r\n"));
  }
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  RawClient client(server_->port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nfirstGET /hello?2 "
      "HTTP/1.1\r\nHost: h\r\n\r\n"
      "GET /stream HTTP/1.1\r\nHost: h\r\n\r\nPOST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: "
      "4\r\n\r\nlast");
  EXPECT_TRUE(client.read_response().ends_with("first"));
  EXPECT_TRUE(client.read_response().ends_with("hello 2"));
  EXPECT_TRUE(has(client.read_until("0\r\n\r\n"), "[DONE]"));
  EXPECT_TRUE(client.read_response().ends_with("last"));
}

TEST_F(ServerTest, RequestSentWhileAnotherRunsIsKept) {
  start();
  RawClient client(server_->port());
  client.send("GET /woken HTTP/1.1\r\nHost: h\r\n\r\n");
  client.send("GET /hello?next HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(client.read_response().ends_with("woken"));
  EXPECT_TRUE(client.read_response().ends_with("hello next"));
}

TEST_F(ServerTest, ChunkedBodiesAndBytewiseArrival) {
  start();
  RawClient client(server_->port());
  for (const char c : std::string("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
                                  "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")) {
    client.send(std::string(1, c));
  }
  EXPECT_TRUE(client.read_response().ends_with("abcde"));
}

TEST_F(ServerTest, ExpectedContinueComesBeforeTheBody) {
  start();
  RawClient client(server_->port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("abc");
  EXPECT_TRUE(client.read_response().ends_with("abc"));
  client.send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 413"));  // and no 100
}

TEST_F(ServerTest, BodyLimitHoldsOnBothSides) {
  start();
  const std::string full(100'000, 'x');
  EXPECT_TRUE(ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n" + full)
                  .ends_with(full));
  const std::string over =
      ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\n\r\n" + full + "x");
  EXPECT_TRUE(over.starts_with("HTTP/1.1 413")) << over.substr(0, 200);
  EXPECT_TRUE(has(over, "100000 bytes"));
  const std::string chunked =
      ask("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n" + full +
          "\r\n1\r\nx\r\n0\r\n\r\n");
  EXPECT_TRUE(chunked.starts_with("HTTP/1.1 413")) << chunked.substr(0, 200);
}

TEST_F(ServerTest, BodiesOfAllConnectionsAreBoundedTogether) {
  start();
  RawClient a(server_->port()), b(server_->port());
  const std::string head = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n";
  // Announced bytes do not count: nobody is kept out by them.
  a.send(head + "x");
  b.send(head + "x");
  EXPECT_TRUE(ask(head + std::string(100'000, 'x')).ends_with("xxx"));
  a.send(std::string(99'998, 'x'));
  b.send(std::string(99'998, 'x'));
  // Those that came do, as soon as the server has read them.
  std::string answer;
  for (int i = 0; i < 50 && !has(answer, "503"); ++i)
    answer = ask(head + std::string(100'000, 'x'));
  EXPECT_TRUE(has(answer, "HTTP/1.1 503"));
  a.send("x");
  EXPECT_TRUE(a.read_response().ends_with("xxx"));
}

TEST_F(ServerTest, HeaderLimitHoldsOnBothSides) {
  start();
  EXPECT_TRUE(ask("GET /hello HTTP/1.1\r\nHost: h\r\nx: " + std::string(4000, 'h') + "\r\n\r\n")
                  .starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(ask("GET /hello HTTP/1.1\r\nHost: h\r\nx: " + std::string(5000, 'h') + "\r\n\r\n")
                  .starts_with("HTTP/1.1 431"));
}

TEST_F(ServerTest, MalformedRequestsAre400AndClose) {
  start();
  for (const char* bytes :
       {"NONSENSE\r\n\r\n", "GET /hello HTTP/9.9\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: h\r\nbad header\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: "
        "chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\nGET /hello "
        "HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    RawClient client(server_->port());
    client.send(bytes);
    EXPECT_TRUE(client.read_all().starts_with("HTTP/1.1 400")) << bytes;
  }
  EXPECT_TRUE(has(ask("GET /hello HTTP/1.1\r\nHost: h\r\n\r\n"), "200"));
}

TEST_F(ServerTest, UnknownPathsAndMethods) {
  start();
  EXPECT_TRUE(ask("GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n").starts_with("HTTP/1.1 404"));
  const std::string answer = ask("DELETE /hello HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(has(answer, "Allow: GET, HEAD\r\n"));
}

// Who words a refusal is told what was asked for, as far as the head came: all of it, its first
// line, or nothing, and then nothing of the request before it on the connection either.
TEST_F(ServerTest, RefusalsKnowTheRequest) {
  start();
  const auto refused = [&](const std::string& bytes) {
    RawClient client(server_->port());
    client.send("HEAD /hello HTTP/1.1\r\nHost: h\r\n\r\n");
    client.read_until("\r\n\r\n");
    client.send(bytes);
    return client.read_all();
  };
  const std::string large(5000, 'x');
  for (const auto& [bytes, status, request] : std::vector<std::array<std::string, 3>>{
           {"GET /no?a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "404", "GET /no"},
           {"PUT /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "405", "PUT /echo"},
           {"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\n\r\n", "413",
            "POST /echo"},
           {"POST /echo HTTP/1.1\r\nHost: h\r\nx: " + large + "\r\n\r\n", "431", "POST /echo"},
           {"POST /echo HTTP/1.1\r\nHost: h\r\nbad header\r\n\r\n", "400", "POST /echo"},
           {"POST /" + large + " HTTP/1.1\r\nHost: h\r\n\r\n", "431", " "},
           {"NONSENSE\r\n\r\n", "400", " "}}) {
    const std::string answer = refused(bytes);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + status)) << answer;
    EXPECT_TRUE(has(answer, "x-refused: " + request + "\r\n")) << answer;
    EXPECT_FALSE(answer.ends_with("\r\n\r\n")) << answer;  // the answer to HEAD is over
  }
}

TEST_F(ServerTest, HandlerThatThrowsIsA500) {
  start();
  EXPECT_TRUE(ask("GET /throw HTTP/1.1\r\nHost: h\r\n\r\n").starts_with("HTTP/1.1 500"));
}

TEST_F(ServerTest, TooManyConnectionsAreRefused) {
  start();
  std::vector<std::unique_ptr<RawClient>> held;
  for (int i = 0; i < 40; ++i) {
    held.push_back(std::make_unique<RawClient>(server_->port()));
    held.back()->send("GET /hello HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_TRUE(has(held.back()->read_response(), "200"));
  }
  RawClient over(server_->port());
  EXPECT_TRUE(over.read_all().starts_with("HTTP/1.1 503"));
}

TEST_F(ServerTest, LeavingIsNoticedWhileNothingIsWritten) {
  for (const bool hard : {false, true}) {
    silent_started_ = {};
    left_ = {};
    start();
    RawClient client(server_->port());
    client.send("GET /silent HTTP/1.1\r\nHost: h\r\n\r\n");
    silent_started_.get_future().wait();
    hard ? client.reset() : client.disconnect();
    ASSERT_EQ(left_.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
    TearDown();
    server_.reset();
    ASSERT_FALSE(answers_.empty());
    EXPECT_EQ(answers_.back(), (std::pair<std::string, int>("/silent", 499)));
  }
}

TEST_F(ServerTest, SlowReaderStopsTheWriterAndIsClosedInTheEnd) {
  ServerLimits limits = small_limits();
  limits.write_timeout = milliseconds(200);
  start(limits);
  RawClient client(server_->port(), 4096);
  client.send("GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(left_.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_LT(flooded_mb_.load(), 64);  // what socket buffers hold, not what a queue of ours would
}

TEST_F(ServerTest, ResetDuringAWriteEndsOnlyThatConnection) {
  start();
  {
    RawClient client(server_->port(), 4096);
    client.send("GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
    client.read_until("\r\n\r\n");
  }  // closing with unread input resets the connection
  left_.get_future().wait();
  EXPECT_TRUE(has(ask("GET /hello?again HTTP/1.1\r\nHost: h\r\n\r\n"), "hello again"));
}

TEST_F(ServerTest, IdleAndHeaderTimeoutsClose) {
  ServerLimits limits = small_limits();
  limits.idle_timeout = milliseconds(50);
  limits.header_timeout = milliseconds(50);
  start(limits);
  RawClient idle(server_->port());
  EXPECT_EQ(idle.read_all(), "");
  RawClient slow(server_->port());
  slow.send("GET /hel");
  EXPECT_EQ(slow.read_all(), "");
}

TEST_F(ServerTest, WakeAfterTheEndIsHarmless) {
  start();
  EXPECT_TRUE(has(ask("GET /woken HTTP/1.1\r\nHost: h\r\n\r\n"), "woken"));
  late_wake_();
  TearDown();
  server_.reset();
  late_wake_();
}

TEST_F(ServerTest, DrainClosesIdleConnectionsAndWaitsForTheOthers) {
  start();
  RawClient idle(server_->port());
  idle.send("GET /hello HTTP/1.1\r\nHost: h\r\n\r\n");
  idle.read_response();
  RawClient half(server_->port());
  half.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  half.read_until("\r\n\r\n");
  server_->drain(kLong);
  EXPECT_EQ(idle.read_all(), "");
  half.send("abc");
  const std::string answer = half.read_all();
  EXPECT_TRUE(has(answer, "Connection: close\r\n")) << answer;
  EXPECT_TRUE(answer.ends_with("abc"));
  thread_.join();  // run() has returned
}

TEST_F(ServerTest, DrainEndsAtItsDeadline) {
  start();
  RawClient client(server_->port());
  client.send("GET /silent HTTP/1.1\r\nHost: h\r\n\r\n");
  silent_started_.get_future().wait();
  server_->drain(milliseconds(50));
  thread_.join();
}

TEST(ServerListen, SaysWhatIsWrong) {
  ServerOptions options{.make_error = make_error};
  Server server(options, Router());
  EXPECT_EQ(server.listen("not-an-address", 0).error().code, base::Code::kInvalidArgument);
  ASSERT_TRUE(server.listen("127.0.0.1", 0).ok());
  Server second(options, Router());
  EXPECT_EQ(second.listen("127.0.0.1", server.port()).error().code, base::Code::kIo);
}

}  // namespace
}  // namespace http
