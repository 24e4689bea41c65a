// Strings as Python sees them: sequences of code points in valid UTF-8, with Python's notions of
// space, line and case.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace text::jinja {

// Bytes of the first character. REQUIRES: text is not empty.
size_t char_size(std::string_view text);
uint32_t first_char(std::string_view text);
void append_char(std::string& text, uint32_t code);
int64_t count_chars(std::string_view text);
bool valid_utf8(std::string_view text);
// Byte offset of character `index`, the end when there are fewer. O(n).
size_t char_offset(std::string_view text, int64_t index);

bool is_space(uint32_t code);      // str.isspace
bool is_printable(uint32_t code);  // str.isprintable
bool is_alpha(uint32_t code);      // str.isalpha
bool is_digit(uint32_t code);      // str.isdigit
bool is_alnum(uint32_t code);
bool is_upper(uint32_t code);
bool is_lower(uint32_t code);

enum class Side { kBoth, kLeft, kRight };
// str.strip: without `chars`, white space.
std::string_view strip(std::string_view text, Side side,
                       std::optional<std::string_view> chars = std::nullopt);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);

// str.splitlines without line ends.
std::vector<std::string_view> split_lines(std::string_view text);
// str.split(); `max` < 0 means no bound. Without separator: runs of white space.
std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t max);
std::vector<std::string_view> rsplit(std::string_view text,
                                     std::optional<std::string_view> separator, int64_t max);

// Offset of the first `needle` at or after `from`, or npos. Linear for any input, which
// std::string_view::find is not.
size_t find(std::string_view text, std::string_view needle, size_t from = 0);
size_t rfind(std::string_view text, std::string_view needle);

}  // namespace text::jinja
