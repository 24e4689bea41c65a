// For tests: a client that sends exact bytes and sees exact bytes, over a blocking socket with a
// time limit on each read.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace http::testing {

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0)
      : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    CHECK(fd_ >= 0);
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    }
    timeval limit{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { disconnect(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }

  // False when the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // As many bytes as the other side and the sockets between take without being waited for long.
  int64_t send_without_waiting(std::string_view bytes) {
    timeval limit{.tv_sec = 0, .tv_usec = 200'000};
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const size_t before = bytes.size();
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) break;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return static_cast<int64_t>(before - bytes.size());
  }
  // Sends nothing more, but would read on.
  void shut_down_sending() { shutdown(fd_, SHUT_WR); }

  // Everything up to the end of the connection.
  std::string read_all() {
    while (fill()) {
    }
    return std::exchange(pending_, {});
  }

  // Up to and including the first `mark`; what there was when the connection ended before it.
  std::string read_until(std::string_view mark) {
    size_t at;
    while ((at = pending_.find(mark)) == std::string::npos) {
      if (!fill()) return std::exchange(pending_, {});
    }
    std::string head = pending_.substr(0, at + mark.size());
    pending_.erase(0, at + mark.size());
    return head;
  }

  // One answer with Content-Length: its head and body.
  std::string read_response() {
    std::string head = read_until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return head;
    const size_t length = std::stoul(head.substr(at + 16));
    while (pending_.size() < length && fill()) {
    }
    std::string body = pending_.substr(0, length);
    pending_.erase(0, length);
    return head + body;
  }

  void disconnect() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  // Ends with a reset instead of an orderly close.
  void reset() {
    linger hard{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    disconnect();
  }

 private:
  bool fill() {
    char buffer[16384];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) return false;
    pending_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  int fd_;
  bool connected_ = false;
  std::string pending_;
};

}  // namespace http::testing
