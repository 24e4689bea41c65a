// What HTTP and JSON cost without a model: small completions a second against an engine that
// answers at once, over connections that stay, and the time to read and parse a chat of 2 MB.
// Server and clients share the machine.
//
//   build/release/bench/http_overhead [--short]
//
// Ends with status 1 when a bound is missed; --short, for tests, only looks that it runs.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "api/parse_request.h"
#include "api/testing.h"
#include "base/log.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kConnections = 64;
constexpr size_t kChatBytes = 2 << 20;
constexpr double kPerSecondMin = 10'000, kChatMsMax = 10;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Two tokens and an end, at once.
class ScriptedEngine final : public engine::Engine {
 public:
  base::Result<void> submit(core::Request request, std::shared_ptr<engine::EventStream> events,
                            bool) override {
    using api::testing::FakeEngine;
    events->reserve();
    FakeEngine::push_start(request, *events, 0);
    for (const core::TokenId token : {'h', 'i'}) FakeEngine::push_token(request, *events, token);
    FakeEngine::push_finish(*events, core::FinishReason::kLength);
    return {};
  }
  void cancel(core::RequestId) override {}
  void drain(int64_t) override {}
  void save_cached(int64_t) override {}
  bool is_saving() const override { return false; }
  void reset_prefix_cache() override {}
  core::LiveState live_state() override { return {}; }
  core::EngineSnapshot snapshot() const override {
    core::EngineSnapshot snapshot;
    snapshot.engine_heartbeat_us = http::monotonic_us();
    return snapshot;
  }
  int32_t context_max() const override { return api::testing::kContext; }
};

class RunningServer {
 public:
  RunningServer() : server_(options()) {
    server_.listen().value();
    thread_ = std::thread([this] {
      server_
          .run([] {
            return api::testing::test_backend(std::make_unique<ScriptedEngine>(),
                                              text::kDefaultChatTemplate);
          })
          .value();
    });
    ready_.get_future().wait();
  }
  ~RunningServer() {
    server_.interrupt();
    server_.interrupt();
    thread_.join();
  }
  uint16_t port() const { return server_.port(); }

 private:
  api::ServerOptions options() {
    api::ServerOptions made = api::testing::test_options();
    made.limits.body_bytes_max = 2 * kChatBytes;
    made.on_ready = [this](uint16_t) { ready_.set_value(); };
    return made;
  }
  std::promise<void> ready_;
  api::Server server_;
  std::thread thread_;
};

int connect_to(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    CHECK(n > 0);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

// Bytes of one answer with Content-Length, 0 while it is not complete.
size_t complete_answer(const std::string& received) {
  const size_t head = received.find("\r\n\r\n");
  if (head == std::string::npos) return 0;
  const size_t length = received.find("Content-Length: ");
  CHECK(length < head, "{}", received);
  const size_t total = head + 4 + std::strtoul(received.c_str() + length + 16, nullptr, 10);
  return received.size() >= total ? total : 0;
}

std::string post(const char* path, const std::string& body) {
  return std::string("POST ") + path +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Of all threads of this process: server and clients.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Rate {
  double per_s, cpu_us;  // CPU time of one request: what a busy machine does not change
};

// Each connection has one request on its way at any time.
Rate small_requests(uint16_t port, std::chrono::milliseconds duration) {
  const std::string request =
      post("/v1/completions", R"({"model":"bytes","prompt":"Hello","max_tokens":2})");
  std::vector<pollfd> polled(kConnections);
  std::vector<std::string> received(kConnections);
  for (pollfd& entry : polled) {
    entry = {.fd = connect_to(port), .events = POLLIN};
    send_all(entry.fd, request);
  }
  int64_t answers = 0;
  const Clock::time_point begin = Clock::now();
  const double cpu_before = cpu_seconds();
  while (Clock::now() - begin < duration) {
    CHECK(poll(polled.data(), polled.size(), 5000) > 0);
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = recv(polled[i].fd, buffer, sizeof buffer, 0);
      CHECK(n > 0);
      received[i].append(buffer, static_cast<size_t>(n));
      if (complete_answer(received[i]) == 0) continue;
      CHECK(received[i].starts_with("HTTP/1.1 200"), "{}", received[i]);
      received[i].clear();
      ++answers;
      send_all(polled[i].fd, request);
    }
  }
  const double seconds = ms_since(begin) / 1000, cpu_s = cpu_seconds() - cpu_before;
  for (const pollfd& entry : polled) close(entry.fd);
  const auto count = static_cast<double>(answers);
  return {.per_s = count / seconds, .cpu_us = cpu_s * 1e6 / count};
}

std::string chat_of(size_t bytes) {
  std::string body = R"({"model":"bytes","messages":[)";
  for (int turn = 0; body.size() < bytes; ++turn) {
    body += turn == 0 ? "" : ",";
    body += turn % 2 == 0 ? R"({"role":"user","content":")" : R"({"role":"assistant","content":")";
    for (int i = 0; i < 400; ++i)
      body += "Some \\\"words\\\" of line " + std::to_string(i) + ".\\n";
    body += "\"}";
  }
  return body + "]}";
}

// Milliseconds from the first byte sent to an answer that needs the whole body read.
double best_read_ms(int rounds) {
  http::Router router;
  router.add("POST", "/read", [](http::Exchange& exchange) -> http::Task<void> {
    http::Response response;
    response.body = std::to_string(exchange.request().body.size());
    co_await exchange.respond(std::move(response));
  });
  http::ServerOptions options;
  options.make_error = [](http::Refusal, const http::Request&, const std::string&) {
    return http::Response{.status = 500};
  };
  http::Server server(std::move(options), std::move(router));
  server.listen("127.0.0.1", 0).value();
  std::thread thread([&server] { server.run(); });
  const std::string request = post("/read", chat_of(kChatBytes));
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    const int fd = connect_to(server.port());
    const Clock::time_point begin = Clock::now();
    send_all(fd, request);
    std::string received;
    char buffer[4096];
    while (complete_answer(received) == 0) {
      const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
      CHECK(n > 0);
      received.append(buffer, static_cast<size_t>(n));
    }
    best = std::min(best, ms_since(begin));
    close(fd);
  }
  server.stop();
  thread.join();
  return best;
}

double best_parse_ms(int rounds) {
  const std::string body = chat_of(kChatBytes);
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    const Clock::time_point begin = Clock::now();
    const auto parsed = api::parse_request(api::Endpoint::kChat, body, api::testing::kVocab);
    best = std::min(best, ms_since(begin));
    CHECK(std::holds_alternative<api::GenerateRequest>(parsed), "{}",
          std::get<api::ApiError>(parsed).message);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const bool brief = argc > 1 && std::strcmp(argv[1], "--short") == 0;
  if (argc > 2 || (argc == 2 && !brief)) {
    std::printf(
        "What HTTP and JSON cost without a model, on this machine; takes 10 s.\n"
        "Example: build/release/bench/http_overhead  (--short: less than a second)\n");
    return std::strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  base::set_log_level("error").value();
  Rate small{};
  {
    RunningServer server;
    small = small_requests(server.port(), std::chrono::milliseconds(brief ? 300 : 5000));
  }
  const int rounds = brief ? 2 : 30;
  const double read_ms = best_read_ms(rounds), parse_ms = best_parse_ms(rounds);
  const bool fast = small.per_s > kPerSecondMin, quick = read_ms + parse_ms <= kChatMsMax;
  std::printf("%s small requests: %.0f /s (over %.0f), %.1f us of CPU each (server and clients)\n",
              fast ? "ok    " : "MISSED", small.per_s, kPerSecondMin, small.cpu_us);
  std::printf("%s chat of 2 MB: read %.2f ms + parse %.2f ms = %.2f ms (up to %.0f; best of %d)\n",
              quick ? "ok    " : "MISSED", read_ms, parse_ms, read_ms + parse_ms, kChatMsMax,
              rounds);
  return brief || (fast && quick) ? 0 : 1;
}
