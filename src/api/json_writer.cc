#include "api/json_writer.h"

#include <fmt/format.h>

#include <iterator>

#include "text/utf8.h"

namespace api {

int64_t utf8_length(std::string_view text) {
  int64_t count = 0;
  while (!text.empty()) {
    text.remove_prefix(text::next_char(text).length);
    ++count;
  }
  return count;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  size_t plain = 0;  // start of the run not yet copied
  size_t i = 0;
  const auto replace = [&](std::string_view with, size_t bytes) {
    out.append(text.substr(plain, i - plain));
    out += with;
    i += bytes;
    plain = i;
  };
  while (i < text.size()) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80) {
      const text::Utf8Char next = text::next_char(text.substr(i));
      if (next.state == text::Utf8Char::State::kWhole) {
        i += next.length;
      } else {
        replace("\xEF\xBF\xBD", next.length);
      }
    } else if (c == '"') {
      replace("\\\"", 1);
    } else if (c == '\\') {
      replace("\\\\", 1);
    } else if (c == '\n') {
      replace("\\n", 1);
    } else if (c == '\r') {
      replace("\\r", 1);
    } else if (c == '\t') {
      replace("\\t", 1);
    } else if (c < 0x20 || c == 0x7F) {
      replace(fmt::format("\\u{:04x}", c), 1);
    } else {
      ++i;
    }
  }
  out.append(text.substr(plain));
  out += '"';
}

void append_json_int(std::string& out, int64_t value) {
  fmt::format_to(std::back_inserter(out), "{}", value);
}

void append_json_logprob(std::string& out, float value) {
  if (!(value > -9999.0f)) value = -9999.0f;
  fmt::format_to(std::back_inserter(out), "{}", value);
}

}  // namespace api
