// One client's connection. Private to http/: with server.cc the only users of Beast.
//
// A coroutine repeats: read a request, run its handler, answer. While a handler runs, a callback
// chain watches the socket for the client's leaving; bytes of a pipelined next request that arrive
// meanwhile are kept, up to a bound.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <memory>
#include <optional>
#include <string>

#include "http/exchange.h"
#include "http/growing_body.h"
#include "http/server.h"
#include "http/wake_hub.h"

namespace http {

// What all connections of a server share. Thread: I/O, but for `hub`.
struct Shared {
  ServerOptions options;
  Router router;
  std::shared_ptr<WakeHub> hub = std::make_shared<WakeHub>();
  bool announce_close = false;  // answers carry Connection: close
  int64_t bodies_bytes = 0;     // held by all connections
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, Shared& shared);
  ~Connection();

  // Until the connection is closed. Keeps itself alive.
  Task<void> run();
  // Closes at once when no request is being read or served.
  void close_if_idle();
  void abort();

 private:
  friend class Exchange;
  using Parser = boost::beast::http::request_parser<GrowingBody>;

  Task<bool> read_request();
  void take_head();
  Task<bool> answer_from_head();
  Task<boost::system::error_code> read_header();
  Task<bool> read_body();
  Task<bool> await_first_byte();
  Task<void> serve();
  Task<void> run_handler(const Handler& handler, Exchange& exchange);
  Task<void> answer_unrouted(Exchange& exchange, const std::string& allow);
  void report(const Request& request, std::string_view route, int status);
  bool claim_body_bytes(int64_t bytes);
  Task<void> refuse(Refusal refusal, std::string message);
  Task<void> refuse_unread(boost::system::error_code ec);
  Task<void> linger();

  Task<void> send_response(Exchange& exchange, Response response);
  Task<void> send_head(Exchange& exchange, const StreamHead& head);
  Task<bool> send_chunk(Exchange& exchange, std::string_view bytes);
  Task<void> finish_stream(Exchange& exchange);
  Task<bool> send(std::string_view a, std::string_view b, std::string_view c);
  std::string make_head(const Exchange& exchange, int status, std::string_view content_type,
                        const std::vector<Header>& headers) const;

  Task<bool> wait(std::chrono::milliseconds timeout);
  void signal();
  void watch();
  void watch_for_reset();
  void on_readable(boost::system::error_code ec);
  Task<void> stop_watching();

  Shared& shared_;
  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  Request request_;              // its head from take_head() on, its body until serve()
  std::vector<Header> headers_;  // of its answer, as judged
  boost::asio::steady_timer wake_timer_;
  int64_t body_bytes_ = 0;  // of shared_.bodies_bytes
  int http_minor_ = 1;      // of the request being answered
  bool head_only_ = false;  // HEAD
  bool keep_alive_ = true;
  bool unread_input_ = false;  // the client may still be sending a request that was refused
  bool judged_ = false;        // the request has its answer already
  bool idle_ = false;
  bool woken_ = false;
  bool gone_ = false, aborted_ = false;
  bool watching_ = false;  // a wait on the socket is pending
  bool stopping_ = false;  // stop_watching() waits for its end
};

}  // namespace http
