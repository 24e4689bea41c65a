// A client for many event streams at once on one thread: what a load generator and a router need.
//
// Calls are coroutines of one io_context; connections are kept alive and used again. Plain TCP
// only; no redirects, no TLS. Thread: the one that runs the context.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/client.h"
#include "http/exchange.h"

namespace http {

class AsyncClient {
 public:
  // `timeout` bounds connecting, sending and each wait for bytes.
  AsyncClient(boost::asio::any_io_executor executor, std::string host, uint16_t port,
              std::chrono::milliseconds timeout);
  ~AsyncClient();
  AsyncClient(const AsyncClient&) = delete;
  AsyncClient& operator=(const AsyncClient&) = delete;

  // Finds the host's addresses. Blocks; before the first call. Errors: kIo.
  base::Result<void> resolve();

  using OnEvent = std::function<bool(std::string_view data)>;
  // As Client::stream(): each event's data goes to `on_event` as it arrives, false from it ends the
  // call; an answer that is no event stream comes back whole. Both arguments must live until the
  // call is over. A kept connection that ends before a byte of the answer is replaced by a new one,
  // once. Errors: kIo. REQUIRES: resolve() succeeded.
  Task<base::Result<Response>> stream(const Client::Call& call, const OnEvent& on_event);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace http
