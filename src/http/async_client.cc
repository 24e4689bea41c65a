#include "http/async_client.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/check.h"
#include "http/client_wire.h"

// GCC 12 destroys non-trivial temporaries of a co_await expression twice in some cases: completion
// tokens and arguments are therefore named before they are awaited on.

namespace http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using base::Code;
using boost::system::error_code;
using Stream = boost::beast::tcp_stream;

constexpr size_t kReadBytes = 16 << 10;

auto into(error_code& ec) {
  return asio::redirect_error(asio::use_awaitable, ec);
}

// An idle connection on which nothing has come: a server that closed it has sent an end.
bool still_open(Stream& stream) {
  char byte;
  return recv(stream.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
         (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace

struct AsyncClient::State {
  asio::any_io_executor executor;
  std::string host;
  uint16_t port;
  std::chrono::milliseconds timeout;
  tcp::resolver::results_type addresses;
  std::vector<std::unique_ptr<Stream>> idle;  // the last one used is the first one taken

  base::Error failed(std::string_view what, const error_code& ec) const {
    const bool late = ec == boost::beast::error::timeout;
    return base::error(Code::kIo, "{} {}:{}: {}", what, host, port,
                       late ? "timed out" : ec.message());
  }

  // An idle connection that is still open, or nothing.
  std::unique_ptr<Stream> take_idle() {
    while (!idle.empty()) {
      std::unique_ptr<Stream> stream = std::move(idle.back());
      idle.pop_back();
      if (still_open(*stream)) return stream;
    }
    return nullptr;
  }
  Task<error_code> connect(Stream& stream) {
    error_code ec;
    auto token = into(ec);
    stream.expires_after(timeout);
    co_await stream.async_connect(addresses, token);
    error_code ignored;
    if (!ec) stream.socket().set_option(tcp::no_delay(true), ignored);
    co_return ec;
  }
};

AsyncClient::AsyncClient(asio::any_io_executor executor, std::string host, uint16_t port,
                         std::chrono::milliseconds timeout)
    : state_(std::make_unique<State>(
          State{std::move(executor), std::move(host), port, timeout, {}, {}})) {}
AsyncClient::~AsyncClient() = default;

base::Result<void> AsyncClient::resolve() {
  tcp::resolver resolver(state_->executor);
  error_code ec;
  state_->addresses = resolver.resolve(state_->host, std::to_string(state_->port), ec);
  if (ec) return base::error(Code::kIo, "cannot resolve {}: {}", state_->host, ec.message());
  return {};
}

Task<base::Result<Response>> AsyncClient::stream(const Client::Call& call,
                                                 const OnEvent& on_event) {
  State& s = *state_;
  CHECK(!s.addresses.empty());
  error_code ec;
  std::unique_ptr<Stream> stream = s.take_idle();
  if (stream == nullptr) {
    stream = std::make_unique<Stream>(s.executor);
    ec = co_await s.connect(*stream);
    if (ec) co_return s.failed("cannot connect to", ec);
  }
  const std::string request = request_bytes(call, s.host, s.port);
  const asio::const_buffer sent = asio::buffer(request);
  auto token = into(ec);
  stream->expires_after(s.timeout);
  co_await asio::async_write(*stream, sent, token);
  if (ec) co_return s.failed("cannot send to", ec);

  ResponseReader reader(&on_event, /*head_only=*/false);
  std::array<char, kReadBytes> bytes;
  const asio::mutable_buffer space = asio::buffer(bytes);
  for (bool over = false; !over;) {
    stream->expires_after(s.timeout);
    const size_t n = co_await stream->async_read_some(space, token);
    if (ec && ec != asio::error::eof) co_return s.failed("no answer from", ec);
    const base::Result<bool> taken = reader.take({bytes.data(), ec ? 0 : n});
    if (!taken.ok()) {
      co_return base::error(Code::kIo, "{}:{}: {}", s.host, s.port, taken.error().message);
    }
    over = *taken;
  }
  // An answer that ended with the connection leaves nothing to keep.
  if (!ec && reader.reusable()) s.idle.push_back(std::move(stream));
  co_return reader.response();
}

}  // namespace http
