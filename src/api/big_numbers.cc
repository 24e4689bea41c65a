#include "api/big_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <system_error>

namespace api {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

size_t digits_end(std::string_view text, size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

struct Literal {
  size_t end = 0;  // 0: no number of JSON
  bool is_integer = true;
};

Literal literal_at(std::string_view text, size_t at) {
  const size_t first = at + (text[at] == '-');
  size_t end = digits_end(text, first);
  if (end == first || (text[first] == '0' && end > first + 1)) return {};
  Literal literal{.end = end};
  if (end < text.size() && text[end] == '.') {
    literal = {.end = digits_end(text, end + 1), .is_integer = false};
    if (literal.end == end + 1) return {};
    end = literal.end;
  }
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    const size_t sign = end + 1;
    const bool is_signed = sign < text.size() && (text[sign] == '-' || text[sign] == '+');
    const size_t exponent = sign + (is_signed ? 1 : 0);
    literal = {.end = digits_end(text, exponent), .is_integer = false};
    if (literal.end == exponent) return {};
  }
  return literal;
}

template <typename Number>
std::errc read(std::string_view literal, Number* number) {
  return std::from_chars(literal.data(), literal.data() + literal.size(), *number).ec;
}

// Of a literal that is not 0. The exponent's sign alone does not say it: the digits count too.
bool is_below_one(std::string_view literal) {
  const size_t exponent_at = std::min(literal.find_first_of("eE"), literal.size());
  const std::string_view digits = literal.substr(0, exponent_at);
  std::string_view exponent_text = literal.substr(std::min(exponent_at + 1, literal.size()));
  if (exponent_text.starts_with('+')) exponent_text.remove_prefix(1);  // from_chars takes none
  int64_t exponent = 0;
  if (read(exponent_text, &exponent) == std::errc::result_out_of_range) {
    return exponent_text.starts_with('-');  // no text has digits enough to make up for it
  }
  const auto first = static_cast<int64_t>(digits.find_first_of("123456789"));
  const auto point = static_cast<int64_t>(std::min(digits.find('.'), digits.size()));
  return exponent < first - point + (first < point ? 1 : 0);
}

void append_number(std::string_view literal, bool is_integer, std::string* out) {
  int64_t whole = 0;
  uint64_t positive = 0;
  const bool fits = read(literal, &whole) == std::errc() ||
                    (literal[0] != '-' && read(literal, &positive) == std::errc());
  double number = 0.0;
  const bool in_range = read(literal, &number) == std::errc();
  if (is_integer ? fits : in_range) {
    out->append(literal);
  } else if (in_range) {
    fmt::format_to(std::back_inserter(*out), "{:.17e}", number);
  } else {
    const double bound = is_below_one(literal) ? 0.0 : std::numeric_limits<double>::max();
    fmt::format_to(std::back_inserter(*out), "{:.17e}", literal[0] == '-' ? -bound : bound);
  }
}

}  // namespace

std::string with_numbers_rounded(std::string_view json) {
  std::string out;
  out.reserve(json.size() + 64);
  bool in_string = false;
  for (size_t at = 0; at < json.size();) {
    const char c = json[at];
    if (in_string) {
      const size_t count = c == '\\' && at + 1 < json.size() ? 2 : 1;
      in_string = c != '"';
      out.append(json.substr(at, count));
      at += count;
      continue;
    }
    in_string = c == '"';
    const Literal literal = c == '-' || is_digit(c) ? literal_at(json, at) : Literal{};
    if (literal.end == 0) {
      out += c;
      ++at;
      continue;
    }
    append_number(json.substr(at, literal.end - at), literal.is_integer, &out);
    at = literal.end;
  }
  return out;
}

}  // namespace api
