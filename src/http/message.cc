#include "http/message.h"

#include <algorithm>
#include <chrono>

namespace http {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::optional<std::string_view> Request::header(std::string_view name) const {
  for (const Header& h : headers) {
    if (equals_ignoring_case(h.name, name)) return h.value;
  }
  return std::nullopt;
}

std::string_view status_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

int64_t monotonic_us() {
  using std::chrono::duration_cast, std::chrono::microseconds, std::chrono::steady_clock;
  return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace http
