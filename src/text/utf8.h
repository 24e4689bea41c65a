// UTF-8 as bytes from anywhere: what is one character, what is none, and how much of it is bad.
//
// Bad bytes are grouped as the Unicode standard recommends (maximal subparts) and Python's
// "replace" does it: the longest start of a character that could still have become one counts as
// one bad run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace text {

struct Utf8Char {
  enum class State : uint8_t {
    kWhole,
    kBad,
    kCut
  };  // kCut: the text ends inside what may yet become a character
  State state = State::kBad;
  uint8_t length = 0;       // bytes of the character or of the bad run
  char32_t code_point = 0;  // kWhole only
};

// The character at the start of `text`. REQUIRES: !text.empty(). ENSURES: 1 <= length <= 4.
Utf8Char next_char(std::string_view text);

// Length in bytes of the longest start of `text` that is valid UTF-8.
size_t valid_prefix_bytes(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

// Appends the text of `bytes` to `out` with U+FFFD for every bad run; a cut character at the end
// stays out unless `at_end`. Returns the bytes consumed.
size_t append_replaced(std::string& out, std::string_view bytes, bool at_end);

}  // namespace text
