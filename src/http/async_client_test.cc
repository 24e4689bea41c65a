// The asynchronous client against the server of this folder: many streams at once on one thread,
// connections used again, and an error in words for each way the other side can fail.
#include "http/async_client.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "http/server.h"
#include "http/sse.h"

namespace http {
namespace {

using std::chrono::milliseconds;

// Ten events, a ping before each.
Task<void> count(Exchange& exchange) {
  StreamHead head;
  co_await exchange.begin_stream(std::move(head));
  for (int i = 0; i < 10; ++i) {
    std::string bytes(kPingEvent);
    append_event(bytes, exchange.request().body + std::to_string(i));
    if (!co_await exchange.write(bytes)) co_return;
    co_await exchange.wait(milliseconds(1));
  }
}

Task<void> refuse(Exchange& exchange) {
  Response response{.status = 429, .content_type = "text/plain", .body = "later"};
  co_await exchange.respond(std::move(response));
}

Task<void> silent(Exchange& exchange) {
  while (!exchange.gone()) co_await exchange.wait(milliseconds(10'000));
}

class AsyncClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Router router;
    router.add("POST", "/count", count);
    router.add("POST", "/refuse", refuse);
    router.add("POST", "/silent", silent);
    ServerOptions options;
    options.make_error = [](Refusal, const Request&, const std::string& message) {
      return Response{.status = 404, .content_type = "text/plain", .body = message};
    };
    server_ = std::make_unique<Server>(std::move(options), std::move(router));
    ASSERT_TRUE(server_->listen("127.0.0.1", 0).ok());
    thread_ = std::thread([this] { server_->run(); });
  }
  void TearDown() override { stop(); }
  // Ends the server and what listens.
  void stop() {
    if (server_ == nullptr) return;
    server_->stop();
    thread_.join();
    server_.reset();
  }

  struct Outcome {
    std::string events;  // their data, joined
    base::Result<Response> response = base::error(base::Code::kInternal, "not over");
  };
  Task<void> call(AsyncClient& client, std::string path, std::string body, Outcome* outcome,
                  size_t events_max = SIZE_MAX) {
    const Client::Call request{"POST", std::move(path), {}, std::move(body)};
    size_t events = 0;
    const AsyncClient::OnEvent on_event = [&](std::string_view data) {
      outcome->events += data;
      return ++events < events_max;
    };
    outcome->response = co_await client.stream(request, on_event);
  }
  // Starts the coroutine and runs everything to its end.
  void run(Task<void> task) {
    asio_.restart();
    boost::asio::co_spawn(asio_, std::move(task), boost::asio::detached);
    asio_.run();
  }

  std::unique_ptr<Server> server_;
  std::thread thread_;
  boost::asio::io_context asio_;
};

TEST_F(AsyncClientTest, ManyStreamsAtOnceKeepTheirEventsApart) {
  AsyncClient client(asio_.get_executor(), "127.0.0.1", server_->port(), milliseconds(20'000));
  ASSERT_TRUE(client.resolve().ok());
  std::vector<Outcome> outcomes(200);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    boost::asio::co_spawn(asio_, call(client, "/count", std::string(1, 'a' + i % 26), &outcomes[i]),
                          boost::asio::detached);
  }
  asio_.run();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    std::string expected;
    for (int n = 0; n < 10; ++n) expected += std::string(1, 'a' + i % 26) + std::to_string(n);
    EXPECT_EQ(outcomes[i].events, expected);
    ASSERT_TRUE(outcomes[i].response.ok()) << outcomes[i].response.error().message;
    EXPECT_EQ(outcomes[i].response->status, 200);
  }
}

// Takes one connection after another on a port of its own and answers the first `answers[i]`
// requests of the i-th; the next request is read and the connection then closed without a word. Has
// taken all its connections when it is destroyed.
class Quitter {
 public:
  explicit Quitter(std::vector<int> answers)
      : acceptor_(asio_, {boost::asio::ip::address_v4::loopback(), 0}),
        thread_([this, answers = std::move(answers)] {
          for (const int count : answers) serve(acceptor_.accept(), count);
        }) {}
  ~Quitter() { thread_.join(); }
  uint16_t port() const { return acceptor_.local_endpoint().port(); }

 private:
  static void serve(boost::asio::ip::tcp::socket socket, int count) {
    for (int i = 0;; ++i) {
      std::string request;
      boost::system::error_code ec;
      boost::asio::read_until(socket, boost::asio::dynamic_buffer(request), "\r\n\r\n", ec);
      if (ec || i == count) return;
      const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
      boost::asio::write(socket, boost::asio::buffer(answer));
    }
  }

  boost::asio::io_context asio_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::thread thread_;
};

TEST_F(AsyncClientTest, ConnectionsAreUsedAgain) {
  Quitter server({3});  // one connection for all
  AsyncClient client(asio_.get_executor(), "127.0.0.1", server.port(), milliseconds(20'000));
  ASSERT_TRUE(client.resolve().ok());
  for (int i = 0; i < 3; ++i) {
    Outcome outcome;
    run(call(client, "/", "", &outcome));
    ASSERT_TRUE(outcome.response.ok()) << outcome.response.error().message;
    EXPECT_EQ(outcome.response->body, "ok");
  }
}

TEST_F(AsyncClientTest, AKeptConnectionThatEndsIsReplacedOnceANewOneIsNot) {
  Quitter server({1, 1, 0});
  AsyncClient client(asio_.get_executor(), "127.0.0.1", server.port(), milliseconds(20'000));
  ASSERT_TRUE(client.resolve().ok());
  for (int i = 0; i < 2; ++i) {  // the second call meets the end of the first connection
    Outcome outcome;
    run(call(client, "/", "", &outcome));
    ASSERT_TRUE(outcome.response.ok()) << outcome.response.error().message;
    EXPECT_EQ(outcome.response->body, "ok");
  }
  Outcome outcome;  // the second connection ends, and so does the third, which is new
  run(call(client, "/", "", &outcome));
  ASSERT_FALSE(outcome.response.ok()) << "an end is no answer";
  EXPECT_NE(outcome.response.error().message.find("ended before an answer"), std::string::npos);
}

TEST_F(AsyncClientTest, WholeAnswersComeBackAndAStreamCanBeLeft) {
  AsyncClient client(asio_.get_executor(), "127.0.0.1", server_->port(), milliseconds(20'000));
  ASSERT_TRUE(client.resolve().ok());
  Outcome refused, left;
  run(call(client, "/refuse", "", &refused));
  ASSERT_TRUE(refused.response.ok());
  EXPECT_EQ(refused.response->status, 429);
  EXPECT_EQ(refused.response->body, "later");
  run(call(client, "/count", "", &left, 3));
  EXPECT_TRUE(left.response.ok());
  EXPECT_EQ(left.events, "012");
}

TEST_F(AsyncClientTest, FailuresAreSaidInWords) {
  AsyncClient client(asio_.get_executor(), "127.0.0.1", server_->port(), milliseconds(200));
  ASSERT_TRUE(client.resolve().ok());
  Outcome late, refused;
  run(call(client, "/silent", "", &late));
  ASSERT_FALSE(late.response.ok());
  EXPECT_NE(late.response.error().message.find("timed out"), std::string::npos);
  stop();
  run(call(client, "/count", "", &refused));
  ASSERT_FALSE(refused.response.ok());
  EXPECT_NE(refused.response.error().message.find("cannot connect to 127.0.0.1"),
            std::string::npos);
}

}  // namespace
}  // namespace http
