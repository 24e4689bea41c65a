#include "http/client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "http/client_wire.h"

namespace http {

using base::Code;

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
  const std::string bytes = request_bytes(call, host_, port_);
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
  ResponseReader reader(on_event, head_only);
  for (bool over = false; !over;) {
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    if (n < 0) {
      const int error = errno;
      disconnect();
      const bool late = error == EAGAIN || error == EWOULDBLOCK;
      return base::error(Code::kIo, "no answer from {}:{}: {}", host_, port_,
                         late ? "timed out" : std::strerror(error));
    }
    const base::Result<bool> taken = reader.take({buffer, static_cast<size_t>(n)});
    if (!taken.ok()) {
      disconnect();
      return base::error(Code::kIo, "{}:{}: {}", host_, port_, taken.error().message);
    }
    over = *taken;
  }
  if (!reader.reusable()) disconnect();
  return reader.response();
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
