// A blocking HTTP/1.1 client over one kept-alive connection, for benchmarks, tools and tests: whole
// answers and event streams.
//
// Loopback and plain TCP only; no redirects, no TLS. Thread: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/message.h"

namespace http {

class Client {
 public:
  // `timeout` bounds connecting and each wait for bytes.
  Client(std::string host, uint16_t port, std::chrono::milliseconds timeout);
  ~Client();
  Client(Client&& other) noexcept;
  Client& operator=(Client&&) = delete;

  struct Call {
    std::string method = "GET";
    std::string path;  // no blank, no control character: a caller's duty, as with headers
    std::vector<Header> headers;  // Host, Content-Type (JSON) and Content-Length are added
    std::string body;
  };

  // Sends the request and reads the whole answer. Connects first where there is no open connection.
  // Errors: kIo.
  base::Result<Response> call(const Call& call);

  // The same for a stream of server-sent events: each event's data is given to `on_event` as it
  // arrives; comments are skipped. False from it ends the call and the connection. An answer that
  // is no event stream comes back whole, as from call().
  base::Result<Response> stream(const Call& call,
                                const std::function<bool(std::string_view data)>& on_event);

 private:
  base::Result<void> connect();
  base::Result<void> send(const Call& call);
  base::Result<Response> receive(const std::function<bool(std::string_view)>* on_event,
                                 bool head_only);
  void disconnect();

  std::string host_;
  uint16_t port_;
  std::chrono::milliseconds timeout_;
  int fd_ = -1;
};

}  // namespace http
