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

struct Exchanged {
  base::Result<Response> response;
  bool begun = false;     // a byte of the answer has come, or the wait for it was over
  bool reusable = false;  // the connection can carry another request
};

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
  // One request and its answer.
  Task<Exchanged> exchange(Stream& stream, const std::string& request, const OnEvent& on_event) {
    error_code ec;
    auto token = into(ec);
    const asio::const_buffer sent = asio::buffer(request);
    stream.expires_after(timeout);
    co_await asio::async_write(stream, sent, token);
    if (ec) co_return Exchanged{failed("cannot send to", ec)};
    ResponseReader reader(&on_event, /*head_only=*/false);
    std::array<char, kReadBytes> bytes;
    const asio::mutable_buffer space = asio::buffer(bytes);
    for (bool over = false; !over;) {
      stream.expires_after(timeout);
      const size_t n = co_await stream.async_read_some(space, token);
      if (ec && ec != asio::error::eof) {
        const bool late = ec == boost::beast::error::timeout;
        co_return Exchanged{failed("no answer from", ec), late || reader.begun()};
      }
      const base::Result<bool> taken = reader.take({bytes.data(), ec ? 0 : n});
      if (!taken.ok()) {
        base::Error error = base::error(Code::kIo, "{}:{}: {}", host, port, taken.error().message);
        co_return Exchanged{std::move(error), reader.begun()};
      }
      over = *taken;
    }
    // An answer that ended with the connection leaves nothing to keep.
    co_return Exchanged{reader.response(), true, !ec && reader.reusable()};
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
  const std::string request = request_bytes(call, s.host, s.port);
  if (std::unique_ptr<Stream> idle = s.take_idle()) {
    Exchanged exchanged = co_await s.exchange(*idle, request, on_event);
    if (exchanged.reusable) s.idle.push_back(std::move(idle));
    // The server may have closed an idle connection just when the request was sent.
    if (exchanged.response.ok() || exchanged.begun) co_return std::move(exchanged.response);
  }
  auto fresh = std::make_unique<Stream>(s.executor);
  const error_code ec = co_await s.connect(*fresh);
  if (ec) co_return s.failed("cannot connect to", ec);
  Exchanged exchanged = co_await s.exchange(*fresh, request, on_event);
  if (exchanged.reusable) s.idle.push_back(std::move(fresh));
  co_return std::move(exchanged.response);
}

}  // namespace http
