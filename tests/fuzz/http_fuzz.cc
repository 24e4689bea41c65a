// Bytes from anyone, as one connection's client sends them: one connection over a socket pair,
// first given everything at once, then byte by byte. Whatever they are, handlers see the same
// requests both ways, none with a body over the limit, and what comes back is HTTP. (An error may
// be noticed later where the bytes come one by one, so answers may differ.)
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "http/connection.h"

namespace {

constexpr size_t kInputBytesMax = 8192;
constexpr int64_t kBodyBytesMax = 2048;

void require(bool condition) {
  if (!condition) std::abort();
}

http::Response error_text(http::Refusal refusal, const http::Request&, const std::string& message) {
  static constexpr int kStatus[] = {400, 404, 405, 413, 431, 503, 500};
  http::Response response;
  response.status = kStatus[static_cast<int>(refusal)];
  response.body = message;
  return response;
}

// Of a handled request, as both ways must see it.
void note(std::string* seen, const http::Request& request) {
  *seen += request.method + " " + request.path + "?" + request.query + " " +
           std::to_string(request.body.size()) + "\n" + request.body + "\n";
}

http::Shared make_shared_state(std::string* seen) {
  http::Shared shared;
  shared.options.limits.header_bytes_max = 1024;
  shared.options.limits.body_bytes_max = kBodyBytesMax;
  shared.options.make_error = error_text;
  shared.options.judge = [](const http::Request& head, std::string_view) {
    http::Verdict verdict;
    if (head.header("refuse"))
      verdict.answer = error_text(http::Refusal::kMalformed, head, "refused");
    return verdict;
  };
  const auto echo = [seen](http::Exchange& exchange) -> http::Task<void> {
    note(seen, exchange.request());
    require(static_cast<int64_t>(exchange.request().body.size()) <= kBodyBytesMax);
    http::Response response;
    response.body = exchange.request().query + ":" + exchange.request().body;
    co_await exchange.respond(std::move(response));
  };
  shared.router.add("GET", "/a", echo);
  shared.router.add("POST", "/a", echo);
  shared.router.add("GET", "/s", [seen](http::Exchange& exchange) -> http::Task<void> {
    note(seen, exchange.request());
    http::StreamHead head;
    co_await exchange.begin_stream(std::move(head));
    co_await exchange.write("data: x\n\n");
  });
  return shared;
}

// The requests that handlers saw of `input`, sent in pieces of `piece` bytes.
class Client {
 public:
  std::string ask(std::string_view input, size_t piece) {
    int fds[2];
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    boost::asio::ip::tcp::socket socket(io_, boost::asio::ip::tcp::v4(), fds[0]);
    auto connection = std::make_shared<http::Connection>(std::move(socket), shared_);
    boost::asio::co_spawn(io_, connection->run(), boost::asio::detached);
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
    connection.reset();  // run() begins with the first turn of the loop, so not earlier
    require(shared_.bodies_bytes == 0);
    require(answers.empty() || answers.starts_with("HTTP/1."));
    return std::exchange(seen_, {});
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

  std::string seen_;
  http::Shared shared_ = make_shared_state(&seen_);
  boost::asio::io_context io_{1};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Client client;
  const std::string_view input(reinterpret_cast<const char*>(data), std::min(size, kInputBytesMax));
  require(client.ask(input, input.size()) == client.ask(input, 1));
  return 0;
}
