// An HTTP/1.1 and 1.0 server on one I/O thread: keep-alive, pipelining, chunked bodies, Expect:
// 100-continue, limits on everything a client can make it hold, and a drain.
//
// The thread that calls run() is the I/O thread: every handler and callback runs there, so handlers
// share state without locks and must not block. What http/ itself refuses (too large, malformed,
// unknown path) is put into words by ServerOptions::make_error, so that one place decides the shape
// of errors.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "http/exchange.h"
#include "http/router.h"

namespace http {

// A timeout closes the connection without an answer.
struct ServerLimits {
  int64_t header_bytes_max = 32 << 10;
  int64_t body_bytes_max = 32 << 20;     // one body
  int64_t bodies_bytes_max = 512 << 20;  // all bodies being read or served, together
  int32_t connections_max = 4096;        // further ones are answered 503 and closed
  std::chrono::milliseconds header_timeout{
      10'000};  // first byte of a request to the end of its header
  std::chrono::milliseconds body_timeout{120'000};  // the whole body
  std::chrono::milliseconds idle_timeout{75'000};   // keep-alive connection between requests
  std::chrono::milliseconds write_timeout{60'000};  // one write that the client does not take
};

// What a look at the head of a request decided.
struct Verdict {
  std::optional<Response> answer;  // instead of the route's: refused, or answered already
  std::vector<Header> headers;     // of whatever answer follows
};

// What http/ refuses by itself.
enum class Refusal : uint8_t {
  kMalformed,         // 400
  kNotFound,          // 404
  kMethodNotAllowed,  // 405
  kBodyTooLarge,      // 413
  kHeaderTooLarge,    // 431
  kBusy,              // 503: too many connections or bytes of bodies
  kInternal,          // 500: a handler failed
};

struct ServerOptions {
  ServerLimits limits;
  // The answer to a refusal, for people in `message`; status included. `request`: as much of its
  // head as was read, so its path may be "".
  std::function<Response(Refusal, const Request& request, const std::string& message)> make_error;
  // Called with the head of every request (its body is empty), before its body is read and before a
  // path that does not exist is said to. `route` is the registered path or "". May be empty.
  std::function<Verdict(const Request& head, std::string_view route)> judge;
  // Called after every answer. `route` is the registered path or "".
  std::function<void(const Request&, std::string_view route, int status, int64_t duration_us)>
      on_answer;
};

class Server {
 public:
  Server(ServerOptions options, Router router);
  ~Server();  // REQUIRES: run() has returned or was never called
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Binds and listens; port 0 takes a free one. Errors: kInvalidArgument (not an address), kIo.
  base::Result<void> listen(const std::string& host, uint16_t port);
  uint16_t port() const;

  // Serves until stop(), or until a drain is over.
  void run();

  // The members below may be called from any thread.

  // No new connections; idle ones close; answers carry Connection: close; run() returns when the
  // last connection is closed or after `deadline`.
  void drain(std::chrono::milliseconds deadline);
  // Answers carry Connection: close from now on, but connections are still taken.
  void announce_close();
  // run() returns as soon as it can; open connections are dropped.
  void stop();

  // Runs `fn` on the I/O thread, soon or after `delay`.
  void post(std::function<void()> fn);
  void after(std::chrono::milliseconds delay, std::function<void()> fn);
  // Calls `fn` on the I/O thread for each SIGTERM and SIGINT. REQUIRES: before run().
  void on_signal(std::function<void()> fn);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace http
