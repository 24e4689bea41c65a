#include "text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

namespace text::jinja {

size_t char_size(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return std::min(size, text.size());
}

uint32_t first_char(std::string_view text) {
  utf8proc_int32_t code = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  if (utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size(), 4)),
                       &code) <= 0)
    return 0xfffd;
  return static_cast<uint32_t>(code);
}

void append_char(std::string& text, uint32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

int64_t count_chars(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

bool valid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  size_t at = 0;
  while (at < text.size()) {
    if (bytes[at] < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t code = 0;
    const auto left = static_cast<utf8proc_ssize_t>(text.size() - at);
    const auto size = utf8proc_iterate(bytes + at, std::min<utf8proc_ssize_t>(left, 4), &code);
    if (size <= 0) return false;
    at += static_cast<size_t>(size);
  }
  return true;
}

size_t char_offset(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += char_size(text.substr(at));
  return at;
}

bool is_space(uint32_t code) {
  if (code < 0x80)
    return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x1f);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

namespace {

utf8proc_category_t category(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

bool is_printable(uint32_t code) {
  if (code == ' ') return true;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_upper(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LU;
}
bool is_lower(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL;
}

bool is_alpha(uint32_t code) {
  const auto kind = category(code);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_ND;
}
bool is_alnum(uint32_t code) {
  return is_alpha(code) || is_digit(code) || category(code) == UTF8PROC_CATEGORY_NL ||
         category(code) == UTF8PROC_CATEGORY_NO;
}

namespace {

bool strippable(std::string_view character, const std::optional<std::string_view>& chars) {
  if (!chars) return is_space(first_char(character));
  // Valid UTF-8 synchronises itself, so a byte search meets whole characters only.
  return chars->find(character) != std::string_view::npos;
}

size_t last_char_begin(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

}  // namespace

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> chars) {
  while (side != Side::kRight && !text.empty() &&
         strippable(text.substr(0, char_size(text)), chars)) {
    text.remove_prefix(char_size(text));
  }
  while (side != Side::kLeft && !text.empty()) {
    const size_t last = last_char_begin(text);
    if (!strippable(text.substr(last), chars)) break;
    text = text.substr(0, last);
  }
  return text;
}

namespace {

template <typename Map>
std::string map_chars(std::string_view text, Map&& map) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    map(first_char(text), result);
    text.remove_prefix(char_size(text));
  }
  return result;
}

void add_upper(uint32_t code, std::string& out) {
  if (code == 0xdf) {  // the one common letter whose capital is two
    out += "SS";
    return;
  }
  append_char(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
}

void add_lower(uint32_t code, std::string& out) {
  append_char(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

}  // namespace

std::string upper(std::string_view text) {
  return map_chars(text, add_upper);
}
std::string lower(std::string_view text) {
  return map_chars(text, add_lower);
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const size_t size = char_size(text);
  std::string result;
  const uint32_t code = first_char(text);
  if (code == 0xdf) {
    result = "Ss";
  } else {
    append_char(result,
                static_cast<uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
  }
  return result + lower(text.substr(size));
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t size = char_size(text.substr(at));
    const uint32_t code = first_char(text.substr(at));
    const bool ends = (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) ||
                      code == 0x85 || code == 0x2028 || code == 0x2029;
    if (ends) lines.push_back(text.substr(begin, at - begin));
    at += size;
    if (ends && code == '\r' && at < text.size() && text[at] == '\n') ++at;
    if (ends) begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

namespace {

size_t skip(std::string_view text, size_t at, bool spaces) {
  while (at < text.size() && is_space(first_char(text.substr(at))) == spaces)
    at += char_size(text.substr(at));
  return at;
}

std::vector<std::string_view> split_spaces(std::string_view text, int64_t max) {
  std::vector<std::string_view> parts;
  size_t at = skip(text, 0, true);
  while (at < text.size()) {
    if (max >= 0 && static_cast<int64_t>(parts.size()) == max) {
      parts.push_back(text.substr(at));
      break;
    }
    const size_t end = skip(text, at, false);
    parts.push_back(text.substr(at, end - at));
    at = skip(text, end, true);
  }
  return parts;
}

std::vector<std::string_view> rsplit_spaces(std::string_view text, int64_t max) {
  std::vector<std::string_view> parts;
  text = strip(text, Side::kRight);
  while (!text.empty()) {
    if (static_cast<int64_t>(parts.size()) == max) {
      parts.push_back(text);
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      const size_t last = last_char_begin(text.substr(0, begin));
      if (is_space(first_char(text.substr(last)))) break;
      begin = last;
    }
    parts.push_back(text.substr(begin));
    text = strip(text.substr(0, begin), Side::kRight);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t max) {
  if (!separator) return split_spaces(text, max);
  std::vector<std::string_view> parts;
  size_t begin = 0;
  while (max < 0 || static_cast<int64_t>(parts.size()) < max) {
    const size_t at = find(text, *separator, begin);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(begin, at - begin));
    begin = at + separator->size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> rsplit(std::string_view text,
                                     std::optional<std::string_view> separator, int64_t max) {
  if (max < 0) return split(text, separator, max);
  if (!separator) return rsplit_spaces(text, max);
  const std::string reversed(text.rbegin(), text.rend());
  const std::string needle(separator->rbegin(), separator->rend());
  std::vector<std::string_view> parts;
  for (std::string_view part : split(reversed, needle, max)) {
    const size_t end = text.size() - static_cast<size_t>(part.data() - reversed.data());
    parts.push_back(text.substr(end - part.size(), part.size()));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

size_t find(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* at = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (at == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

size_t rfind(std::string_view text, std::string_view needle) {
  const std::string reversed(text.rbegin(), text.rend());
  const std::string backwards(needle.rbegin(), needle.rend());
  const size_t at = find(reversed, backwards);
  return at == std::string_view::npos ? at : text.size() - at - needle.size();
}

}  // namespace text::jinja
