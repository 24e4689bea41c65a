#include "http/server.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <set>

#include "base/log.h"
#include "http/connection.h"

namespace http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Out of descriptors: accepting again at once would spin.
constexpr std::chrono::milliseconds kAcceptRetry{100};

}  // namespace

struct Server::State {
  State(ServerOptions options, Router router)
      : shared{.options = std::move(options), .router = std::move(router)} {}

  Task<void> accept_loop();
  void serve(tcp::socket socket);
  void refuse(tcp::socket socket);
  void listen_to_wakes();
  void begin_drain(std::chrono::milliseconds deadline);
  void stop_if_drained() {
    if (draining && connections.empty()) io.stop();
  }

  Shared shared;  // outlives the connections, whose coroutines `io` owns
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::posix::stream_descriptor wakes{io};
  asio::signal_set signals{io};
  std::function<void()> signal_fn;
  std::set<Connection*> connections;
  bool draining = false;
  uint16_t port = 0;

  void listen_to_signals() {
    signals.async_wait([this](error_code ec, int) {
      if (ec) return;
      signal_fn();
      listen_to_signals();
    });
  }
};

Server::Server(ServerOptions options, Router router)
    : state_(std::make_unique<State>(std::move(options), std::move(router))) {
  CHECK(state_->shared.options.make_error != nullptr);
}

Server::~Server() {
  state_->wakes.release();  // the hub owns the descriptor
  state_->shared.hub->close();
}

base::Result<void> Server::listen(const std::string& host, uint16_t port) {
  error_code ec;
  const std::string numeric = host == "localhost" ? "127.0.0.1" : host;
  const auto address = asio::ip::make_address(numeric, ec);
  if (ec) {
    return base::error(base::Code::kInvalidArgument,
                       "host '{}': expected an IP address such as 127.0.0.1", host);
  }
  const tcp::endpoint endpoint(address, port);
  tcp::acceptor& acceptor = state_->acceptor;
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) {
    return base::error(base::Code::kIo,
                       "cannot listen on {}:{}: {}; choose another --port (0 takes a free one)",
                       host, port, ec.message());
  }
  state_->port = acceptor.local_endpoint(ec).port();
  return {};
}

uint16_t Server::port() const {
  return state_->port;
}

void Server::run() {
  State& state = *state_;
  state.wakes.assign(state.shared.hub->fd());
  state.listen_to_wakes();
  asio::co_spawn(state.io, state.accept_loop(), asio::detached);
  state.io.run();
}

void Server::State::listen_to_wakes() {
  wakes.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code ec) {
    if (ec) return;
    shared.hub->deliver();
    listen_to_wakes();
  });
}

Task<void> Server::State::accept_loop() {
  while (acceptor.is_open()) {
    error_code ec;
    auto token = asio::redirect_error(asio::use_awaitable, ec);
    tcp::socket socket = co_await acceptor.async_accept(token);
    if (ec == asio::error::operation_aborted || draining) break;
    if (ec) {
      LOG_WARN("cannot accept a connection: {}", ec.message());
      asio::steady_timer timer(io, kAcceptRetry);
      auto waited = asio::redirect_error(asio::use_awaitable, ec);
      co_await timer.async_wait(waited);
      continue;
    }
    if (static_cast<int64_t>(connections.size()) >= shared.options.limits.connections_max) {
      refuse(std::move(socket));
    } else {
      serve(std::move(socket));
    }
  }
}

void Server::State::serve(tcp::socket socket) {
  error_code ec;
  socket.set_option(tcp::no_delay(true), ec);
  auto connection = std::make_shared<Connection>(std::move(socket), shared);
  Connection* key = connection.get();
  connections.insert(key);
  auto done = [this, key](std::exception_ptr failure) {
    if (failure) LOG_ERROR("a connection ended by an exception");
    connections.erase(key);
    stop_if_drained();
  };
  asio::co_spawn(
      io,
      [](std::shared_ptr<Connection> held) -> Task<void> {
        co_await held->run();
      }(std::move(connection)),
      std::move(done));
}

// Over the limit: one short answer into the empty socket buffer, without a connection of its own.
void Server::State::refuse(tcp::socket socket) {
  const Response response = shared.options.make_error(Refusal::kBusy, Request{},
                                                      "Too many connections; try again later.");
  std::string bytes =
      fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nConnection: close\r\n", response.status,
                  status_phrase(response.status), response.content_type);
  for (const Header& header : response.headers)
    bytes += fmt::format("{}: {}\r\n", header.name, header.value);
  bytes += fmt::format("Content-Length: {}\r\n\r\n{}", response.body.size(), response.body);
  error_code ec;
  socket.non_blocking(true, ec);
  socket.write_some(asio::buffer(bytes), ec);
  socket.shutdown(tcp::socket::shutdown_send, ec);
}

void Server::State::begin_drain(std::chrono::milliseconds deadline) {
  if (draining) return;
  draining = true;
  shared.announce_close = true;
  error_code ec;
  acceptor.close(ec);
  for (Connection* connection : connections) connection->close_if_idle();
  auto timer = std::make_shared<asio::steady_timer>(io, deadline);
  timer->async_wait([this, timer](error_code) { io.stop(); });
  stop_if_drained();
}

void Server::drain(std::chrono::milliseconds deadline) {
  asio::post(state_->io, [state = state_.get(), deadline] { state->begin_drain(deadline); });
}

void Server::announce_close() {
  asio::post(state_->io, [state = state_.get()] { state->shared.announce_close = true; });
}

void Server::stop() {
  state_->io.stop();
}

void Server::post(std::function<void()> fn) {
  asio::post(state_->io, std::move(fn));
}

void Server::after(std::chrono::milliseconds delay, std::function<void()> fn) {
  asio::post(state_->io, [state = state_.get(), delay, fn = std::move(fn)] {
    auto timer = std::make_shared<asio::steady_timer>(state->io, delay);
    timer->async_wait([timer, fn](error_code ec) {
      if (!ec) fn();
    });
  });
}

void Server::on_signal(std::function<void()> fn) {
  state_->signal_fn = std::move(fn);
  error_code ec;
  state_->signals.add(SIGTERM, ec);
  state_->signals.add(SIGINT, ec);
  state_->listen_to_signals();
}

}  // namespace http
