#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace text {
namespace {

constexpr int kMovedCount = 68;

struct Alphabet {
  std::array<char32_t, 256> char_of{};
  std::array<uint8_t, kMovedCount> byte_of_moved{};  // of U+0100 + index

  constexpr Alphabet() {
    int moved = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      if (itself) {
        char_of[byte] = static_cast<char32_t>(byte);
      } else {
        char_of[byte] = static_cast<char32_t>(0x100 + moved);
        byte_of_moved[moved++] = static_cast<uint8_t>(byte);
      }
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

char32_t byte_level_char(uint8_t byte) {
  return kAlphabet.char_of[byte];
}

bool append_byte_level_bytes(std::string& out, std::string_view spelling) {
  const size_t before = out.size();
  while (!spelling.empty()) {
    const Utf8Char c = next_char(spelling);
    int byte = -1;
    if (c.state == Utf8Char::State::kWhole) {
      if (c.code_point < 256 && kAlphabet.char_of[c.code_point] == c.code_point)
        byte = static_cast<int>(c.code_point);
      if (c.code_point >= 0x100 && c.code_point < 0x100 + kMovedCount)
        byte = kAlphabet.byte_of_moved[c.code_point - 0x100];
    }
    if (byte < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(byte));
    spelling.remove_prefix(c.length);
  }
  return true;
}

int byte_of_fallback_token(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return -1;
  int byte = 0;
  for (char c : spelling.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

}  // namespace text
