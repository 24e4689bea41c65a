#include "text/utf8.h"

#include "base/check.h"

namespace text {
namespace {

// What a lead byte promises: length, and the range of the second byte (which rules out overlong
// forms, surrogates and code points past U+10FFFF). Length 0: no character starts so.
struct Lead {
  uint8_t length, second_min, second_max;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char next_char(std::string_view text) {
  DCHECK(!text.empty());
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.length == 1) return {Utf8Char::State::kWhole, 1, byte(0)};
  if (lead.length == 0) return {Utf8Char::State::kBad, 1, 0};
  char32_t code_point = byte(0) & (0x7Fu >> lead.length);
  for (uint8_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Char::State::kCut, i, 0};
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte(i) < min || byte(i) > max) return {Utf8Char::State::kBad, i, 0};
    code_point = code_point << 6 | (byte(i) & 0x3Fu);
  }
  return {Utf8Char::State::kWhole, lead.length, code_point};
}

size_t valid_prefix_bytes(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    if (static_cast<uint8_t>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const Utf8Char c = next_char(text.substr(pos));
    if (c.state != Utf8Char::State::kWhole) break;
    pos += c.length;
  }
  return pos;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

size_t append_replaced(std::string& out, std::string_view bytes, bool at_end) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Utf8Char c = next_char(bytes.substr(pos));
    if (c.state == Utf8Char::State::kCut && !at_end) break;
    if (c.state == Utf8Char::State::kWhole) {
      out.append(bytes, pos, c.length);
    } else {
      append_utf8(out, 0xFFFD);
    }
    pos += c.length;
  }
  return pos;
}

}  // namespace text
