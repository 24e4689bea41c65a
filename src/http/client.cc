#include "http/client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

namespace http {
namespace {

namespace beast = boost::beast;
using base::Code;
using Parser = beast::http::response_parser<beast::http::string_body>;

// Takes complete events off the front of `text`. False: the receiver wants no more.
bool deliver_events(std::string& text, const std::function<bool(std::string_view)>& on_event) {
  size_t begin = 0;
  for (size_t end; (end = text.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
    const std::string_view event = std::string_view(text).substr(begin, end - begin);
    constexpr std::string_view kData = "data: ";
    if (event.starts_with(kData) && !on_event(event.substr(kData.size()))) return false;
  }
  text.erase(0, begin);
  return true;
}

Response to_response(Parser& parser, std::string body) {
  Response response;
  response.status = parser.get().result_int();
  for (const auto& field : parser.get()) {
    const auto name = field.name_string();
    response.headers.push_back({std::string(name.data(), name.size()),
                                std::string(field.value().data(), field.value().size())});
    if (equals_ignoring_case(response.headers.back().name, "content-type")) {
      response.content_type = response.headers.back().value;
    }
  }
  response.body = std::move(body);
  return response;
}

}  // namespace

Client::Client(std::string host, uint16_t port, std::chrono::milliseconds timeout)
    : host_(std::move(host)), port_(port), timeout_(timeout) {}
Client::~Client() {
  disconnect();
}
Client::Client(Client&& other) noexcept
    : host_(std::move(other.host_)),
      port_(other.port_),
      timeout_(other.timeout_),
      fd_(std::exchange(other.fd_, -1)) {}

void Client::disconnect() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

base::Result<void> Client::connect() {
  if (fd_ >= 0) return {};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &found);
      code != 0) {
    return base::error(Code::kIo, "cannot resolve {}: {}", host_, gai_strerror(code));
  }
  int error = 0;
  for (const addrinfo* address = found; address != nullptr && fd_ < 0; address = address->ai_next) {
    const int fd =
        socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    const auto us = std::chrono::microseconds(timeout_).count();
    const timeval limit{.tv_sec = us / 1'000'000, .tv_usec = us % 1'000'000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (fd >= 0 && ::connect(fd, address->ai_addr, address->ai_addrlen) == 0) {
      fd_ = fd;
    } else {
      error = errno;
      if (fd >= 0) close(fd);
    }
  }
  freeaddrinfo(found);
  if (fd_ >= 0) return {};
  return base::error(Code::kIo, "cannot connect to {}:{}: {}", host_, port_, std::strerror(error));
}

base::Result<void> Client::send(const Call& call) {
  RETURN_IF_ERROR(connect());
  std::string bytes =
      fmt::format("{} {} HTTP/1.1\r\nHost: {}:{}\r\n", call.method, call.path, host_, port_);
  for (const Header& header : call.headers)
    bytes += fmt::format("{}: {}\r\n", header.name, header.value);
  if (!call.body.empty()) bytes += "Content-Type: application/json\r\n";
  bytes += fmt::format("Content-Length: {}\r\n\r\n", call.body.size());
  bytes += call.body;
  for (std::string_view rest = bytes; !rest.empty();) {
    const ssize_t n = ::send(fd_, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n <= 0) {
      const int error = errno;
      disconnect();
      return base::error(Code::kIo, "cannot send to {}:{}: {}", host_, port_, std::strerror(error));
    }
    rest.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

base::Result<Response> Client::receive(const std::function<bool(std::string_view)>* on_event,
                                       bool head_only) {
  Parser parser;
  parser.eager(true);
  parser.skip(head_only);
  parser.body_limit(boost::none);
  std::string pending;  // received, not yet parsed
  std::string body;     // for streams: what is not yet a whole event
  bool wanted = true;
  while (wanted && !parser.is_done()) {
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    if (n < 0) {
      const int error = errno;
      disconnect();
      const bool late = error == EAGAIN || error == EWOULDBLOCK;
      return base::error(Code::kIo, "no answer from {}:{}: {}", host_, port_,
                         late ? "timed out" : std::strerror(error));
    }
    boost::system::error_code ec;
    pending.append(buffer, static_cast<size_t>(n));
    size_t used = 1;
    while (!ec && used > 0 && !pending.empty() && !parser.is_done()) {
      used = parser.put(boost::asio::buffer(pending), ec);
      pending.erase(0, used);
    }
    if (ec == beast::http::error::need_more) ec = {};
    if (n == 0 && !ec) parser.put_eof(ec);
    if (ec) {
      disconnect();
      return base::error(Code::kIo, "broken answer from {}:{}: {}", host_, port_, ec.message());
    }
    body += std::exchange(parser.get().body(), {});
    const bool events =
        parser.is_header_done() && on_event != nullptr &&
        parser.get()[beast::http::field::content_type].starts_with("text/event-stream");
    if (events) wanted = deliver_events(body, *on_event);
  }
  if (!wanted || !parser.keep_alive()) disconnect();
  return to_response(parser, std::move(body));
}

base::Result<Response> Client::call(const Call& call) {
  RETURN_IF_ERROR(send(call));
  return receive(nullptr, call.method == "HEAD");
}

base::Result<Response> Client::stream(const Call& call,
                                      const std::function<bool(std::string_view)>& on_event) {
  RETURN_IF_ERROR(send(call));
  return receive(&on_event, /*head_only=*/false);
}

}  // namespace http
