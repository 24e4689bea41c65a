// The byte-level alphabet of GPT-2: every byte has a printable character, so that tokens can be
// spelled as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace text {

// Bytes 33..126, 161..172 and 174..255 stand for themselves; the other 68 are U+0100 and up, in
// order.
char32_t byte_level_char(uint8_t byte);

// Appends the bytes that `spelling` stands for and returns true; false, nothing appended, if a
// character of it is not of the alphabet.
bool append_byte_level_bytes(std::string& out, std::string_view spelling);

// The byte of a token spelled <0xNN>, or -1.
int byte_of_fallback_token(std::string_view spelling);

}  // namespace text
