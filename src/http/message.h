// Requests and responses as plain data. http/ knows no models and no JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace http {

struct Header {
  std::string name;
  std::string value;
};

struct Request {
  std::string method;  // "GET", "POST", ...
  std::string path;    // without the query; an absolute-form target is reduced to its path
  std::string query;   // after '?', as sent
  std::vector<Header> headers;
  std::string body;
  int64_t arrival_us = 0;  // monotonic clock when the header was complete

  // The first header of that name (case does not matter), or nothing.
  std::optional<std::string_view> header(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Header> headers;  // further ones; names and values without CR, LF or NUL
  std::string body;
};

// "Not Found" for 404; "Unknown" for a code this server does not use.
std::string_view status_phrase(int status);

bool equals_ignoring_case(std::string_view a, std::string_view b);

// Monotonic microseconds, the clock of all request times.
int64_t monotonic_us();

}  // namespace http
