#include "text/jinja_lexer.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "text/jinja_text.h"

namespace text::jinja {

using base::Code;

namespace {

// Longer operators first: the first that matches is the token.
constexpr std::array<std::string_view, 25> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};

std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool starts_name(char c) {
  return c == '_' || (c | 32) - 'a' + 0u < 26u || static_cast<unsigned char>(c) >= 0x80;
}
bool is_decimal(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  base::Result<std::vector<Token>> run() {
    while (at_ < source_.size()) RETURN_IF_ERROR(data());
    push(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void advance(size_t bytes) {
    for (const char c : rest().substr(0, bytes)) line_ += c == '\n';
    at_ += bytes;
    at_line_start_ = at_ == 0 || (bytes > 0 ? source_[at_ - 1] == '\n' : at_line_start_);
  }

  void push(TokenType type, std::string text) {
    Token token;
    token.type = type;
    token.text = std::move(text);
    token.line = line_;
    tokens_.push_back(std::move(token));
  }

  template <typename... Args>
  base::Error fail(fmt::format_string<Args...> format, Args&&... args) const {
    return base::error(Code::kInvalidArgument, "template line {}: {}", line_,
                       fmt::format(format, std::forward<Args>(args)...));
  }

  void skip_spaces() {
    size_t bytes = 0;
    for (auto text = rest(); !text.empty() && is_space(first_char(text));
         text.remove_prefix(char_size(text))) {
      bytes += char_size(text);
    }
    advance(bytes);
  }

  // Emits `text`, which a tag with `sign` ('-', '+' or 0) follows.
  void push_data(std::string_view text, char sign, bool lstrip) {
    std::string_view kept = text;
    if (sign == '-') {
      kept = strip(text, Side::kRight);
    } else if (sign != '+' && lstrip) {
      const size_t line_begin = text.rfind('\n') + 1;
      const std::string_view blank = text.substr(line_begin);
      if ((line_begin > 0 || at_line_start_) && !blank.empty() &&
          strip(blank, Side::kBoth).empty()) {
        kept = text.substr(0, line_begin);
      }
    }
    if (!kept.empty()) push(TokenType::kData, std::string(kept));
    advance(text.size());
  }

  // Template text up to the next tag, and the tag.
  base::Result<void> data() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push_data(rest(), '+', false);
        return {};
      }
      const char kind = source_[tag + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
    }
    const char kind = source_[tag + 1];
    const char next = tag + 2 < source_.size() ? source_[tag + 2] : 0;
    const char sign = next == '-' || next == '+' ? next : 0;
    push_data(rest().substr(0, tag - at_), sign, kind != '{');
    const size_t begin = sign != 0 ? 3 : 2;
    if (kind == '#') return comment(begin);
    if (kind == '%') {
      if (const size_t raw = raw_begin(begin); raw > 0) return raw_text(raw);
    }
    push(kind == '%' ? TokenType::kBlockBegin : TokenType::kOutputBegin, "");
    advance(begin);
    return inside(kind == '%' ? '%' : '}');
  }

  // Ends a tag or comment whose closing mark is at at_: `mark` is "%}", "}}" or "#}", perhaps with
  // a sign before it.
  bool close(std::string_view mark, bool plus_allowed, bool trim) {
    const std::string_view text = rest();
    const bool minus = text.starts_with('-');
    const bool plus = plus_allowed && text.starts_with('+');
    if (text.substr(minus || plus ? 1 : 0, 2) != mark) return false;
    advance(minus || plus ? 3 : 2);
    if (minus) {
      skip_spaces();
    } else if (!plus && trim && rest().starts_with('\n')) {
      advance(1);
    }
    return true;
  }

  base::Result<void> comment(size_t begin) {
    const size_t end = source_.find("#}", at_ + begin);
    if (end == std::string::npos) return fail("a comment has no end");
    const char sign = end > at_ + begin ? source_[end - 1] : 0;
    advance(end - at_ - (sign == '-' || sign == '+' ? 1 : 0));
    close("#}", true, true);
    return {};
  }

  size_t skip_in(size_t at) const {
    while (at < source_.size()) {
      const auto byte = static_cast<unsigned char>(source_[at]);
      if (byte >= 0x80 || !is_space(byte)) break;
      ++at;
    }
    return at;
  }

  // Bytes of the raw tag at at_, or 0 when it is another tag.
  size_t raw_begin(size_t begin) const {
    size_t at = skip_in(at_ + begin);
    if (source_.compare(at, 3, "raw") != 0) return 0;
    at = skip_in(at + 3);
    if (source_.compare(at, 3, "-%}") == 0) return skip_in(at + 3) - at_;
    return source_.compare(at, 2, "%}") == 0 ? at + 2 - at_ : 0;
  }

  base::Result<void> raw_text(size_t begin) {
    advance(begin);
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      const char next = tag + 2 < source_.size() ? source_[tag + 2] : 0;
      const char sign = next == '-' || next == '+' ? next : 0;
      size_t end = skip_in(tag + (sign != 0 ? 3 : 2));
      if (source_.compare(end, 6, "endraw") != 0) continue;
      end = skip_in(end + 6);
      const size_t mark =
          end + (source_.compare(end, 1, "-") == 0 || source_.compare(end, 1, "+") == 0 ? 1 : 0);
      if (source_.compare(mark, 2, "%}") != 0) continue;
      push_data(rest().substr(0, tag - at_), sign, true);
      advance(end - at_);
      close("%}", true, true);
      return {};
    }
    return fail("a raw block has no end");
  }

  // The tokens of one tag, up to its closing mark.
  base::Result<void> inside(char mark) {
    const std::string_view close_mark = mark == '%' ? "%}" : "}}";
    brackets_.clear();
    for (;;) {
      if (at_ >= source_.size()) return fail("a tag has no end: expected '{}'", close_mark);
      const int32_t line = line_;
      if (brackets_.empty() && close(close_mark, mark == '%', mark == '%')) {
        push(mark == '%' ? TokenType::kBlockEnd : TokenType::kOutputEnd, "");
        tokens_.back().line = line;
        return {};
      }
      if (is_space(first_char(rest()))) {
        skip_spaces();
        continue;
      }
      RETURN_IF_ERROR(token());
    }
  }

  base::Result<void> token() {
    const char c = source_[at_];
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (is_decimal(c)) return number(after_dot);
    if (starts_name(c)) return name();
    if (c == '\'' || c == '"') return string(c);
    for (const std::string_view op : kOperators) {
      if (!rest().starts_with(op)) continue;
      RETURN_IF_ERROR(balance(op));
      push(TokenType::kOperator, std::string(op));
      advance(op.size());
      return {};
    }
    return fail("unexpected character '{}'", rest().substr(0, char_size(rest())));
  }

  base::Result<void> balance(std::string_view op) {
    if (op == "(" || op == "[" || op == "{") brackets_ += op == "(" ? ')' : op == "[" ? ']' : '}';
    if (op != ")" && op != "]" && op != "}") return {};
    if (brackets_.empty() || brackets_.back() != op[0]) return fail("unexpected '{}'", op);
    brackets_.pop_back();
    return {};
  }

  base::Result<void> name() {
    size_t bytes = 0;
    while (at_ + bytes < source_.size() &&
           (starts_name(source_[at_ + bytes]) || is_decimal(source_[at_ + bytes])))
      ++bytes;
    push(TokenType::kName, std::string(rest().substr(0, bytes)));
    advance(bytes);
    return {};
  }

  // Digits with single underscores between them, copied to `digits`.
  size_t scan_digits(size_t at, std::string& digits) const {
    while (at < source_.size()) {
      const bool joined =
          source_[at] == '_' && at + 1 < source_.size() && is_decimal(source_[at + 1]);
      if (!is_decimal(source_[at]) && !joined) break;
      if (!joined) digits += source_[at];
      ++at;
    }
    return at;
  }

  base::Result<void> number(bool after_dot) {
    std::string digits;
    size_t end = scan_digits(at_, digits);
    bool real = false;
    const auto digit_at = [&](size_t at) { return at < source_.size() && is_decimal(source_[at]); };
    if (!after_dot && source_.compare(end, 1, ".") == 0 && digit_at(end + 1)) {
      digits += '.';
      end = scan_digits(end + 1, digits);
      real = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] | 32) == 'e') {
      const bool sign =
          end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
      if (digit_at(end + (sign ? 2 : 1))) {
        digits += 'e';
        if (sign) digits += source_[end + 1];
        end = scan_digits(end + (sign ? 2 : 1), digits);
        real = true;
      }
    }
    push(real ? TokenType::kFloat : TokenType::kInt, digits);
    Token& token = tokens_.back();
    const char* last = token.text.data() + token.text.size();
    if (real) {
      token.real = std::strtod(token.text.c_str(), nullptr);
    } else if (std::from_chars(token.text.data(), last, token.integer).ec != std::errc()) {
      return base::error(Code::kUnsupported, "template line {}: the integer {} is beyond 64 bits",
                         line_, digits.substr(0, 40));
    } else if (digits.size() > 1 && digits[0] == '0' && token.integer != 0) {
      return fail("the integer {} has a leading zero", digits.substr(0, 40));
    }
    advance(end - at_);
    return {};
  }

  base::Result<void> string(char quote) {
    std::string text;
    size_t at = at_ + 1;
    while (true) {
      if (at >= source_.size()) return fail("a string has no end");
      if (source_[at] == quote) break;
      if (source_[at] == '\\') {
        ASSIGN_OR_RETURN(at, escape(at + 1, text));
      } else {
        text += source_[at++];
      }
    }
    push(TokenType::kString, std::move(text));
    advance(at + 1 - at_);
    return {};
  }

  // Reads one escape whose backslash is before `at`; returns where reading goes on.
  base::Result<size_t> escape(size_t at, std::string& text) {
    if (at >= source_.size()) return fail("a string has no end");
    static constexpr std::string_view kFrom = "abfnrtv\\'\"";
    static constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[at];
    if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
      text += kTo[simple];
      return at + 1;
    }
    if (c == '\n') return at + 1;
    if (c >= '0' && c <= '7') return number_escape(at, 3, 8, false, text);
    if (c == 'x') return number_escape(at + 1, 2, 16, true, text);
    if (c == 'u') return number_escape(at + 1, 4, 16, true, text);
    if (c == 'U') return number_escape(at + 1, 8, 16, true, text);
    if (c == 'N')
      return base::error(Code::kUnsupported, "template line {}: the escape \\N is not supported",
                         line_);
    text += '\\';
    return at;  // an unknown escape stays as it is
  }

  base::Result<size_t> number_escape(size_t at, size_t digits, int radix, bool exact,
                                     std::string& text) {
    uint32_t code = 0;
    const char* begin = source_.data() + at;
    const char* end = begin + std::min(digits, source_.size() - at);
    const auto [stop, status] = std::from_chars(begin, end, code, radix);
    const auto used = static_cast<size_t>(stop - begin);
    if (status != std::errc() || (exact && used != digits))
      return fail("a string has a truncated escape");
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      return fail("a string escape names U+{:04X}, which is no character", code);
    }
    append_char(text, code);
    return at + used;
  }

  std::string source_;
  size_t at_ = 0;
  int32_t line_ = 1;
  bool at_line_start_ = true;
  std::string brackets_;  // closers expected, the innermost last
  std::vector<Token> tokens_;
};

}  // namespace

base::Result<std::vector<Token>> tokenize(std::string_view source) {
  if (!valid_utf8(source))
    return base::error(Code::kInvalidArgument, "the chat template is not valid UTF-8");
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace text::jinja
