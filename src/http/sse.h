// Server-sent events as the clients of language models expect them: "data: " + one line of JSON +
// an empty line, LF only.
#pragma once

#include <string>
#include <string_view>

namespace http {

// Appends one event. REQUIRES: `data` holds no line break (JSON escapes them).
inline void append_event(std::string& out, std::string_view data) {
  out += "data: ";
  out += data;
  out += "\n\n";
}

// The same with a name, for the APIs whose events have types.
inline void append_event(std::string& out, std::string_view name, std::string_view data) {
  out += "event: ";
  out += name;
  out += '\n';
  append_event(out, data);
}

// The event that ends every stream, also one that failed.
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";
// A comment that clients skip: keeps proxies from closing a stream that has nothing to say yet.
inline constexpr std::string_view kPingEvent = ": ping\n\n";

}  // namespace http
