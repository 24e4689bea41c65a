// One request and its answer, as a handler sees them.
//
// A handler is a coroutine on the I/O thread. It answers exactly once: respond(), or begin_stream()
// and any number of write()s. While it waits for others (text workers, the engine) it sleeps in
// wait(): a waker given to them, or the client's going away, ends the sleep. The connection watches
// its socket all the time a handler runs, so a client that leaves is noticed while nothing is being
// written. A client that half-closes its side counts as gone.
//
// Back pressure: write() suspends until the kernel has taken the bytes; nothing is queued behind
// it. A reader that takes nothing for ServerLimits::write_timeout is disconnected. Thread: I/O, but
// for the waker.
#pragma once

#include <any>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <string_view>

#include "http/message.h"

namespace http {

class Connection;

template <typename T>
using Task = boost::asio::awaitable<T>;

struct StreamHead {
  std::string content_type = "text/event-stream; charset=utf-8";
  std::vector<Header> headers;
};

class Exchange {
 public:
  Exchange(Connection& connection, Request request)
      : connection_(connection), request_(std::move(request)) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Request& request() { return request_; }
  const Request& request() const { return request_; }

  // A header of the answer, whichever form it takes. REQUIRES: no CR, LF or NUL in either; the
  // answer has not begun.
  void set_header(std::string name, std::string value);

  // The whole answer at once. REQUIRES: no answer yet.
  Task<void> respond(Response response);

  // Sends the head of an answer of unknown length (chunked; HTTP/1.0: ended by closing). REQUIRES:
  // no answer yet.
  Task<void> begin_stream(StreamHead head);
  // Sends `bytes` (which must stay valid until it returns). False: the client is gone, stop.
  Task<bool> write(std::string_view bytes);

  // Sleeps until woken, the client is gone or `timeout` has passed. May return early; a wake-up
  // that came while the handler was awake is not lost. False: only the time passed.
  Task<bool> wait(std::chrono::milliseconds timeout);
  // Ends wait(). Thread: any; cheap, allocates nothing, may be called after the exchange has ended.
  std::function<void()> waker() const;

  bool gone() const;  // the client has left, or writing to it failed
  // The answer will not be complete because the client has left: it counts as 499. Not if the
  // server has closed the connection itself.
  void give_up();
  bool answered() const { return status_ != 0; }
  int status() const { return status_; }  // 0 until answered

  // What the handler's layer keeps with the request; nothing here looks at it.
  std::any& attachment() { return attachment_; }

 private:
  friend class Connection;
  Connection& connection_;
  Request request_;
  std::vector<Header> headers_;
  std::any attachment_;
  int status_ = 0;
  bool streaming_ = false;
};

using Handler = std::function<Task<void>(Exchange&)>;

}  // namespace http
