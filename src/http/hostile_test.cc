// Clients that mean harm: slow, silent, lying about lengths, flooding. Each against a server with
// small limits, beside a client that must still be answered; what they make the server hold is
// bounded by its limits, which the answers and the bytes it takes off them show.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "http/server.h"
#include "http/testing.h"

namespace http {
namespace {

using std::chrono::milliseconds;
using testing::RawClient;

constexpr int64_t kHeaderBytes = 4096, kBodyBytes = 100'000;

Response error_text(Refusal refusal, const Request&, const std::string& message) {
  static constexpr int kStatus[] = {400, 404, 405, 413, 431, 503, 500};
  Response response;
  response.status = kStatus[static_cast<int>(refusal)];
  response.body = message;
  return response;
}

class HostileTest : public ::testing::Test {
 protected:
  void start(ServerLimits limits = {}) {
    limits.header_bytes_max = kHeaderBytes;
    limits.body_bytes_max = kBodyBytes;
    Router router;
    router.add("POST", "/echo", [this](Exchange& exchange) -> Task<void> {
      ++handled_;
      Response response;
      response.body = std::move(exchange.request().body);
      co_await exchange.respond(std::move(response));
    });
    router.add("GET", "/hello", [this](Exchange& exchange) -> Task<void> {
      ++handled_;
      Response response;
      response.body = "hello " + exchange.request().query;
      co_await exchange.respond(std::move(response));
    });
    router.add("GET", "/silent", [this](Exchange& exchange) -> Task<void> {
      waiting_.set_value();
      while (!exchange.gone()) co_await exchange.wait(milliseconds(20'000));
      left_.set_value();
    });
    ServerOptions options{.limits = limits, .make_error = error_text};
    server_ = std::make_unique<Server>(std::move(options), std::move(router));
    ASSERT_TRUE(server_->listen("127.0.0.1", 0).ok());
    thread_ = std::thread([this] { server_->run(); });
  }
  void TearDown() override {
    if (server_) server_->stop();
    if (thread_.joinable()) thread_.join();
  }

  uint16_t port() const { return server_->port(); }
  // What a client gets for these bytes, up to the end of the connection.
  std::string ask(const std::string& bytes) {
    RawClient client(port());
    client.send(bytes);
    return client.read_all();
  }
  void expect_others_are_served() {
    EXPECT_TRUE(ask("GET /hello?other HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                    .ends_with("hello other"));
  }

  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::atomic<int> handled_{0};
  std::promise<void> waiting_, left_;
};

std::vector<std::unique_ptr<RawClient>> clients_that_sent(uint16_t port, int count,
                                                          const std::string& bytes) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<RawClient>(port));
    clients.back()->send(bytes);
  }
  return clients;
}

TEST_F(HostileTest, HeadersThatNeverEndAreClosed) {
  ServerLimits limits;
  limits.header_timeout = milliseconds(300);
  start(limits);
  auto slow = clients_that_sent(port(), 200, "GET /hello HTTP/1.1\r\nHost: h\r\nx: ");
  expect_others_are_served();
  for (auto& client : slow) client->send("y");  // a byte now and then does not help
  for (auto& client : slow) EXPECT_EQ(client->read_all(), "");
}

TEST_F(HostileTest, BodiesThatNeverEndAreClosed) {
  ServerLimits limits;
  limits.body_timeout = milliseconds(300);
  start(limits);
  auto slow = clients_that_sent(
      port(), 200, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nx");
  expect_others_are_served();
  for (auto& client : slow) client->send("y");
  for (auto& client : slow) EXPECT_EQ(client->read_all(), "");
  EXPECT_EQ(handled_, 1);
}

// The bodies of 200 such clients are announced to be 20 MB, and the limit for all is 1 MB: what
// counts is what came.
TEST_F(HostileTest, AnnouncedBodiesKeepNobodyOut) {
  ServerLimits limits;
  limits.bodies_bytes_max = 1 << 20;
  start(limits);
  auto slow = clients_that_sent(
      port(), 200, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nx");
  const std::string body(kBodyBytes, 'b');
  EXPECT_TRUE(
      ask("POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n" +
          body)
          .ends_with(body));
}

TEST_F(HostileTest, HalfClosedClientsAreGone) {
  start();
  RawClient waits(port());
  waits.send("GET /silent HTTP/1.1\r\nHost: h\r\n\r\n");
  waiting_.get_future().wait();
  waits.shut_down_sending();
  left_.get_future().wait();
  for (const char* part :
       {"", "GET /hel", "GET /hello HTTP/1.1\r\nHost: h\r\n",
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab",
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"}) {
    RawClient client(port());
    client.send(part);
    client.shut_down_sending();
    EXPECT_EQ(client.read_all(), "") << part;
  }
  EXPECT_EQ(handled_, 0);
  expect_others_are_served();
}

// Requests without end from a client that reads no answer: the server stops reading, too.
TEST_F(HostileTest, PipeliningFloodIsHeldBackByTcp) {
  ServerLimits limits;
  limits.write_timeout = milliseconds(1000);
  start(limits);
  RawClient client(port(), 4096);
  std::string requests;
  for (int i = 0; i < 1000; ++i) requests += "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n";
  int64_t taken = 0;
  while (client.send(requests))
    taken += static_cast<int64_t>(requests.size());  // until it is closed
  EXPECT_LT(taken, 64 << 20);
  expect_others_are_served();
}

// While a handler runs only so much of the next requests is kept.
TEST_F(HostileTest, FloodBehindARunningRequestIsHeldBackByTcp) {
  start();
  RawClient client(port());
  client.send("GET /silent HTTP/1.1\r\nHost: h\r\n\r\n");
  waiting_.get_future().wait();
  EXPECT_LT(client.send_without_waiting(std::string(64 << 20, 'x')), 32 << 20);
  expect_others_are_served();
  client.reset();
  left_.get_future().wait();
}

TEST_F(HostileTest, ChunksThatLie) {
  start();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string next = "GET /hello?smuggled HTTP/1.1\r\nHost: h\r\n\r\n";
  for (const char* body :
       {"-1\r\nabc\r\n0\r\n\r\n", "0x3\r\nabc\r\n0\r\n\r\n", "3 \r\nabcd\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n", "3\nabc\n0\n\n", "3\r\nabc0\r\n\r\n", "g\r\n", "\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n00000000000000000000000z\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n", "3\r\nab\r\n0\r\n\r\n"}) {
    const std::string answer = ask(head + body + next);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << body << answer;
    EXPECT_EQ(answer.find("smuggled"), std::string::npos) << body;
  }
  for (const char* body :
       {"ffffffffffffffff\r\nabc", "10000000000000003\r\nabc\r\n0\r\n\r\n", "186a1\r\nabc"})
    EXPECT_FALSE(ask(head + body).starts_with("HTTP/1.1 2")) << body;
  EXPECT_EQ(handled_, 0);
}

// The extension of a chunk and the trailer are read over, but not without a bound.
TEST_F(HostileTest, ChunkHeadsAndTrailersAreBounded) {
  start();
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string few(1000, 'e');
  EXPECT_TRUE(ask(head + "3;" + few + "\r\nabc\r\n0\r\nt: " + few + "\r\n\r\n").ends_with("abc"));
  for (const char* begin : {"3;", "0\r\nt: ", "3\r\nabc\r\n0;"}) {
    RawClient client(port());
    client.send(head + begin);
    const std::string more(1 << 20, 'e');
    client.send(more);  // may fail half-way: the server has had enough
    const std::string answer = client.read_all();
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 4")) << answer;
  }
  EXPECT_EQ(handled_, 1);
  expect_others_are_served();
}

TEST_F(HostileTest, BodiesInChunksOfOneByte) {
  start();
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string chunks;
  for (int64_t i = 0; i < kBodyBytes; ++i) chunks += "1\r\nx\r\n";
  EXPECT_TRUE(ask(head + chunks + "0\r\n\r\n").ends_with(std::string(kBodyBytes, 'x')));
  EXPECT_TRUE(ask(head + chunks + "1\r\nx\r\n0\r\n\r\n").starts_with("HTTP/1.1 413"));
}

TEST_F(HostileTest, HeadsAreBoundedToTheByteHoweverTheyArrive) {
  start();
  const std::string line = "GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\nx: ";
  for (const size_t more : {0, 1, 4}) {
    const std::string pad(static_cast<size_t>(kHeaderBytes) + more - line.size() - 4, 'x');
    const std::string head = line + pad + "\r\n\r\n";
    const char* const want = more == 0 ? "HTTP/1.1 200" : "HTTP/1.1 431";
    EXPECT_TRUE(ask(head).starts_with(want)) << more;
    for (const size_t cut : {head.size() - 1, head.size() - 4, head.size() - more}) {
      RawClient client(port());
      client.send(head.substr(0, cut));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      client.send(head.substr(cut));
      EXPECT_TRUE(client.read_all().starts_with(want)) << more << " bytes more, cut at " << cut;
    }
  }
}

TEST_F(HostileTest, BodiesThatArriveByteByByte) {
  start();
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string_view body : {"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"}) {
    RawClient client(port());
    client.send(head);
    for (const char c : body) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      client.send(std::string(1, c));
    }
    const std::string answer = client.read_all();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200") &&
                answer.ends_with(body[0] == '0' ? "\r\n\r\n" : "abc"))
        << answer;
  }
  EXPECT_EQ(handled_, 2);
}

TEST_F(HostileTest, OnlyOldRequestsMayLackAHost) {
  start();
  for (const char* target : {"/hello", "http://h/hello"}) {
    const std::string bare = std::string("GET ") + target + " HTTP/1.";
    EXPECT_TRUE(ask(bare + "1\r\n\r\n").starts_with("HTTP/1.1 400")) << target;
    EXPECT_TRUE(ask(bare + "0\r\n\r\n").starts_with("HTTP/1.0 200")) << target;
  }
  EXPECT_TRUE(
      ask("GET /hello HTTP/1.1\r\nConnection: close\r\nHost:\r\n\r\n").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(handled_, 3);
}

// However the two lines come.
TEST_F(HostileTest, FoldedLinesAreRefused) {
  start();
  const std::string head = "GET /hello HTTP/1.1\r\nHost: h\r\nx:\r\n y\r\n\r\n";
  for (size_t cut = 0; cut < head.size(); ++cut) {
    RawClient client(port());
    client.send(head.substr(0, cut));
    std::this_thread::sleep_for(milliseconds(cut == 0 ? 0 : 5));
    client.send(head.substr(cut));
    const std::string answer = client.read_response();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << cut << "\n" << answer;
  }
  EXPECT_EQ(handled_, 0);
}

// Heads that two readers could understand differently. A second request hides behind each; it must
// never be served.
TEST_F(HostileTest, SmugglingShapesAreRefused) {
  start();
  const std::string hidden = "0\r\n\r\nGET /hello?smuggled HTTP/1.1\r\nHost: h\r\n\r\n";
  for (const char* head : {"Content-Length: 5\r\nTransfer-Encoding: chunked",
                           "Transfer-Encoding: chunked\r\nContent-Length: 5",
                           "Content-Length: 5\r\nContent-Length: 5",
                           "Content-Length: 5\r\nContent-Length: 6",
                           "Content-Length: 5, 5",
                           "Content-Length: 5,6",
                           "Content-Length: +5",
                           "Content-Length: -5",
                           "Content-Length: 0x5",
                           "Content-Length: 5 5",
                           "Content-Length: ",
                           "Content-Length: 5.0",
                           "Content-Length : 5",
                           " Content-Length: 5",
                           "Content-Length:\r\n 5",
                           "Content-Length: 5\r\n\t",
                           "Transfer-Encoding:\r\n chunked",
                           "x: y\r\n Transfer-Encoding: chunked",
                           "Transfer-Encoding : chunked",
                           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                           "Transfer-Encoding: chunked, chunked",
                           "Transfer-Encoding: xchunked",
                           "Transfer-Encoding: identity",
                           "Transfer-Encoding: chunked, identity",
                           "Transfer-Encoding: \"chunked\"",
                           "Transfer-Encoding: chunked;q=1",
                           "Transfer-Encoding: chunked\n",
                           "x: y\nTransfer-Encoding: chunked",
                           "x: y\rTransfer-Encoding: chunked",
                           "Host: a\r\nHost: b",
                           "x\r\n",
                           ": y",
                           "x: \x01",
                           "x y: z",
                           "Content-Length: 184467440737095516165"}) {
    const std::string answer =
        ask(std::string("POST /echo HTTP/1.1\r\nHost: h\r\n") + head + "\r\n\r\n" + hidden);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 413"))
        << head << "\n"
        << answer;
    EXPECT_EQ(answer.find("smuggled"), std::string::npos) << head;
  }
  const std::string old = ask("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + hidden);
  EXPECT_TRUE(old.starts_with("HTTP/1.0 400") || old.starts_with("HTTP/1.1 400")) << old;
  EXPECT_EQ(handled_, 0);
}

TEST_F(HostileTest, BytesThatAreNoText) {
  start();
  const std::string nul(1, '\0');
  for (const std::string& bytes :
       {"GET /hel" + nul + "lo HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: h\r\nx: a" + nul + "b\r\n\r\n",
        "G" + nul + "T /hello HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: h\r\na" + nul + ": b\r\n\r\n",
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8) + "\r\n\r\n",  // the start of TLS
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}) {
    EXPECT_TRUE(ask(bytes).starts_with("HTTP/1.1 400")) << bytes;
  }
  EXPECT_EQ(handled_, 0);
  const std::string body = nul + "\xFF\xFE\xC0\x80" + nul;
  EXPECT_TRUE(
      ask("POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 6\r\n\r\n" + body)
          .ends_with(body));
  EXPECT_TRUE(ask("GET /\xFF\xC0 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                  .starts_with("HTTP/1.1 404"));
}

TEST_F(HostileTest, ManyHeadersAreBoundedByTheirBytes) {
  start();
  std::string headers;
  while (headers.size() + 64 < kHeaderBytes) headers += "a:\r\n";
  EXPECT_TRUE(ask("GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + headers + "\r\n")
                  .starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(ask("GET /hello HTTP/1.1\r\nHost: h\r\n" + headers + headers + "\r\n")
                  .starts_with("HTTP/1.1 431"));
  EXPECT_TRUE(ask("GET /" + std::string(2 * kHeaderBytes, 'a') + " HTTP/1.1\r\nHost: h\r\n\r\n")
                  .starts_with("HTTP/1.1 431"));
}

}  // namespace
}  // namespace http
