// Bytes from anyone, as one connection's client sends them: one connection over a socket pair,
// first given everything at once, then byte by byte. Whatever they are, both ways get the same
// answers, each of which is an HTTP answer, and no body over the limit reaches a handler.
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "http/connection.h"

namespace {

constexpr size_t kInputBytesMax = 8192;
constexpr int64_t kBodyBytesMax = 2048;

void require(bool condition) {
  if (!condition) std::abort();
}

http::Response error_text(http::Refusal refusal, const std::string& message) {
  static constexpr int kStatus[] = {400, 404, 405, 413, 431, 503, 500};
  http::Response response;
  response.status = kStatus[static_cast<int>(refusal)];
  response.body = message;
  return response;
}

http::Shared make_shared_state() {
  http::Shared shared;
  shared.options.limits.header_bytes_max = 1024;
  shared.options.limits.body_bytes_max = kBodyBytesMax;
  shared.options.make_error = error_text;
  shared.options.judge = [](const http::Request& head, std::string_view) {
    http::Verdict verdict;
    if (head.header("refuse")) verdict.answer = error_text(http::Refusal::kMalformed, "refused");
    return verdict;
  };
  const auto echo = [](http::Exchange& exchange) -> http::Task<void> {
    require(static_cast<int64_t>(exchange.request().body.size()) <= kBodyBytesMax);
    http::Response response;
    response.body = exchange.request().query + ":" + exchange.request().body;
    co_await exchange.respond(std::move(response));
  };
  shared.router.add("GET", "/a", echo);
  shared.router.add("POST", "/a", echo);
  shared.router.add("GET", "/s", [](http::Exchange& exchange) -> http::Task<void> {
    http::StreamHead head;
    co_await exchange.begin_stream(std::move(head));
    co_await exchange.write("data: x\n\n");
  });
  return shared;
}

// The answers to `input`, sent in pieces of `piece` bytes, without their dates.
class Client {
 public:
  std::string ask(std::string_view input, size_t piece) {
    int fds[2];
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    boost::asio::ip::tcp::socket socket(io_, boost::asio::ip::tcp::v4(), fds[0]);
    auto connection = std::make_shared<http::Connection>(std::move(socket), shared_);
    boost::asio::co_spawn(io_, connection->run(), boost::asio::detached);
    connection.reset();
    std::string answers;
    run(fds[1], answers);
    while (!input.empty()) {
      const size_t size = std::min(piece, input.size());
      const ssize_t sent = send(fds[1], input.data(), size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) break;  // closed
      input.remove_prefix(static_cast<size_t>(sent));
      run(fds[1], answers);
    }
    shutdown(fds[1], SHUT_WR);
    io_.restart();
    io_.run();
    read_into(fds[1], answers);
    close(fds[1]);
    require(shared_.bodies_bytes == 0);
    return answers;
  }

 private:
  // Until nothing happens without more input.
  void run(int fd, std::string& answers) {
    size_t events = 1;
    while (events > 0) {
      io_.restart();
      events = io_.poll();
      events += read_into(fd, answers);
    }
  }
  static size_t read_into(int fd, std::string& answers) {
    char buffer[16384];
    ssize_t n;
    size_t total = 0;
    while ((n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
      answers.append(buffer, static_cast<size_t>(n));
      total += static_cast<size_t>(n);
    }
    return total;
  }

  http::Shared shared_ = make_shared_state();
  boost::asio::io_context io_{1};
};

std::string without_dates(std::string text) {
  for (size_t at = 0; (at = text.find("\r\nDate: ", at)) != std::string::npos;)
    text.erase(at, text.find("\r\n", at + 2) - at);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Client client;
  const std::string_view input(reinterpret_cast<const char*>(data), std::min(size, kInputBytesMax));
  const std::string whole = without_dates(client.ask(input, input.size()));
  const std::string split = without_dates(client.ask(input, 1));
  require(whole.empty() || whole.starts_with("HTTP/1."));
  require(whole == split);
  return 0;
}
