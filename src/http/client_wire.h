// What clients put on the wire and take off it, without a socket: bytes of a request, and a reader
// that turns received bytes into events and a Response. The blocking and the asynchronous client
// share both. Private to http/. Thread: any one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/client.h"

namespace http {

// Header and body of `call` as sent to host:port.
std::string request_bytes(const Client::Call& call, const std::string& host, uint16_t port);

class ResponseReader {
 public:
  // Called with each event's data; false: the receiver wants no more.
  using OnEvent = std::function<bool(std::string_view data)>;

  // With `on_event` (borrowed; may be null) the body of an answer that is an event stream goes to
  // it, event by event; any other body is kept. `head_only`: the answer has no body, whatever its
  // header says.
  ResponseReader(const OnEvent* on_event, bool head_only);
  ~ResponseReader();

  // Takes received bytes; empty: the connection has ended. True: the answer is over, or no more of
  // it is wanted. Errors: kIo.
  base::Result<bool> take(std::string_view bytes);

  // A byte of the answer has come.
  bool begun() const;

  // The connection can carry another request. REQUIRES: take() returned true.
  bool reusable() const;
  // REQUIRES: take() returned true; once.
  Response response();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace http
