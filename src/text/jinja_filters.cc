// Filters of single values: text, numbers, JSON. Filters of sequences are in
// jinja_sequence_filters.cc.
#include <array>
#include <cmath>
#include <cstdlib>

#include "text/jinja_builtins.h"
#include "text/jinja_sequence_filters.h"
#include "text/jinja_text.h"

namespace text::jinja {

using base::Code;

Callable& Value::callable() const {
  DCHECK(is(Kind::kCallable));
  return static_cast<Callable&>(*object_);
}

base::Result<std::string> escape_html(Meter& meter, std::string_view text) {
  Builder out(meter);
  for (const char c : text) {
    switch (c) {
      case '&':
        out.add("&amp;");
        break;
      case '<':
        out.add("&lt;");
        break;
      case '>':
        out.add("&gt;");
        break;
      case '\'':
        out.add("&#39;");
        break;
      case '"':
        out.add("&#34;");
        break;
      default:
        out.add(c);
    }
  }
  return std::move(out).text();
}

namespace {

using Answer = base::Result<Value>;

bool is_markup(const Value& value) {
  return value.is_string() && value.string().markup;
}

Answer filter_string(Runtime& runtime, const Value& self, const Args&) {
  if (self.is_string()) return self;
  ASSIGN_OR_RETURN(std::string text, to_text(runtime.meter, self));
  return make_string(&runtime.meter, std::move(text));
}

// Applies a function of text to str(value).
template <std::string (*Map)(std::string_view)>
Answer filter_map_text(Runtime& runtime, const Value& self, const Args&) {
  ASSIGN_OR_RETURN(const std::string text, to_text(runtime.meter, self));
  RETURN_IF_ERROR(spend_chars(runtime, text));
  RETURN_IF_ERROR(spend_chars(runtime, text));
  return make_string(&runtime.meter, Map(text), is_markup(self));
}

// Words begin after white space, a hyphen or an opening bracket.
std::string title(std::string_view text) {
  std::string result;
  bool begins = true;
  for (; !text.empty(); text.remove_prefix(char_size(text))) {
    const std::string_view character = text.substr(0, char_size(text));
    const uint32_t code = first_char(text);
    if (is_space(code) || std::string_view("-({[<").find(character) != std::string_view::npos) {
      result += character;
      begins = true;
      continue;
    }
    result += begins ? upper(character) : lower(character);
    begins = false;
  }
  return result;
}

Answer filter_trim(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("trim", args, {"chars"}));
  ASSIGN_OR_RETURN(const std::string text, to_text(runtime.meter, self));
  std::optional<std::string_view> chars;
  if (a.has(0) && !a[0]->is(Kind::kNone)) {
    ASSIGN_OR_RETURN(chars, a.text(0, ""));
    RETURN_IF_ERROR(
        spend(runtime.meter, static_cast<int64_t>(text.size() * (chars->size() / 16 + 1))));
  }
  const std::string_view kept = strip(text, Side::kBoth, chars);
  RETURN_IF_ERROR(spend(runtime.meter, static_cast<int64_t>(text.size() - kept.size()) * 12));
  return make_string(&runtime.meter, std::string(kept), is_markup(self));
}

Answer filter_replace(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("replace", args, {"old", "new", "count"}, 2));
  ASSIGN_OR_RETURN(const std::string text, to_text(runtime.meter, self));
  ASSIGN_OR_RETURN(const std::string_view from, a.text(0, ""));
  ASSIGN_OR_RETURN(const std::string_view to, a.text(1, ""));
  int64_t left = -1;
  if (a.has(2) && !a[2]->is(Kind::kNone)) {
    ASSIGN_OR_RETURN(left, a.integer(2, -1));
  }
  Builder out(runtime.meter);
  size_t at = 0;
  while (left != 0 && !out.overflowed()) {
    const size_t hit = find(text, from, at);
    if (hit == std::string::npos) break;
    out.add(std::string_view(text).substr(at, hit - at));
    out.add(to);
    at = hit + from.size();
    if (from.empty()) {  // an empty pattern stands before each character and at the end
      if (at == text.size()) return std::move(out).finish();
      const size_t size = char_size(std::string_view(text).substr(at));
      out.add(std::string_view(text).substr(at, size));
      at += size;
    }
    if (left > 0) --left;
  }
  out.add(std::string_view(text).substr(at));
  return std::move(out).finish();
}

Answer filter_indent(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("indent", args, {"width", "first", "blank"}));
  if (!self.is_string())
    return base::error(Code::kInvalidArgument, "indent: expected str, got '{}'", type_name(self));
  std::string pad(4, ' ');
  if (a.has(0) && a[0]->is_string()) {
    pad = a[0]->text();
  } else if (a.has(0)) {
    ASSIGN_OR_RETURN(const int64_t width, a.integer(0, 4));
    if (width > 100'000) return base::error(Code::kTooLarge, "indent: a width of {}", width);
    pad.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const std::string text = std::string(self.text()) + "\n";
  RETURN_IF_ERROR(spend_chars(runtime, text));
  Builder out(runtime.meter);
  if (a.flag(1, false)) out.add(pad);
  bool first = true;
  for (const std::string_view line : split_lines(text)) {
    if (!first) out.add('\n');
    if (!first && (a.flag(2, false) || !line.empty())) out.add(pad);
    out.add(line);
    first = false;
    if (out.overflowed()) break;
  }
  return std::move(out).finish(is_markup(self));
}

Answer filter_default(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("default", args, {"default_value", "boolean"}));
  if (!self.is_undefined() && !(a.flag(1, false) && !truth(self))) return self;
  if (a.has(0)) return *a[0];
  return make_string(&runtime.meter, "");
}

// Python's int(text) in base 10, or nothing.
std::optional<int64_t> parse_int(std::string_view text) {
  std::string digits;
  text = strip(text, Side::kBoth);
  for (size_t i = 0; i < text.size(); ++i) {
    const bool joins = text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_';
    if (!joins) digits += text[i];
  }
  const size_t sign = !digits.empty() && (digits[0] == '-' || digits[0] == '+') ? 1 : 0;
  if (digits.size() == sign || digits.size() > 18 ||
      digits.find_first_not_of("0123456789", sign) != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(digits);
}

// Python's float(text), or nothing.
std::optional<double> parse_float(std::string_view text) {
  const std::string plain(strip(text, Side::kBoth));
  if (plain.empty() || plain.find_first_of("xXpP(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain.c_str(), &end);
  if (end != plain.c_str() + plain.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> truncate_float(double value) {
  if (!(std::fabs(value) < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(value);
}

Answer filter_int(Runtime&, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("int", args, {"default", "base"}));
  if (a.has(1)) return base::error(Code::kUnsupported, "int: a base is not supported");
  if (self.is_undefined()) return undefined_error(self);
  std::optional<int64_t> value;
  if (self.is_integral()) value = self.as_int();
  if (self.is(Kind::kFloat)) value = truncate_float(self.as_real());
  if (self.is_string()) {
    value = parse_int(self.text());
    if (const auto real = parse_float(self.text()); !value && real) value = truncate_float(*real);
  }
  if (value) return Value::integer(*value);
  return a.has(0) ? *a[0] : Value::integer(0);
}

Answer filter_float(Runtime&, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("float", args, {"default"}));
  if (self.is_undefined()) return undefined_error(self);
  if (self.is_number()) return Value::real(self.as_real());
  if (self.is_string()) {
    if (const auto value = parse_float(self.text())) return Value::real(*value);
  }
  return a.has(0) ? *a[0] : Value::real(0.0);
}

Answer filter_abs(Runtime&, const Value& self, const Args&) {
  if (self.is(Kind::kFloat)) return Value::real(std::fabs(self.as_real()));
  if (!self.is_integral() || self.as_int() == INT64_MIN) {
    return base::error(Code::kInvalidArgument, "abs: bad operand '{}'", type_name(self));
  }
  return Value::integer(std::llabs(self.as_int()));
}

Answer filter_round(Runtime&, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("round", args, {"precision", "method"}));
  ASSIGN_OR_RETURN(const int64_t precision, a.integer(0, 0));
  ASSIGN_OR_RETURN(const std::string_view method, a.text(1, "common"));
  if (!self.is_number())
    return base::error(Code::kInvalidArgument, "round: expected a number, got '{}'",
                       type_name(self));
  if (precision < 0 || precision > 15)
    return base::error(Code::kUnsupported, "round: a precision of {}", precision);
  if (method == "common" && self.is_integral()) return Value::integer(self.as_int());
  const double value = self.as_real();
  if (method == "common") {  // printf rounds the exact binary value half to even, as Python does
    return Value::real(std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value::real(std::ceil(value * scale) / scale);
  if (method == "floor") return Value::real(std::floor(value * scale) / scale);
  return base::error(Code::kInvalidArgument, "round: method must be common, ceil or floor");
}

Answer filter_tojson(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(
      const Bound a,
      Bound::match("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = a.flag(0, false);
  style.sort_keys = a.flag(3, false);
  if (a.has(1) && !a[1]->is(Kind::kNone)) {
    style.indented = true;
    style.item_separator.assign(1, ',');
    if (a[1]->is_string()) {
      style.indent = a[1]->text();
    } else {
      ASSIGN_OR_RETURN(const int64_t width, a.integer(1, 0));
      if (width > 1000) return base::error(Code::kTooLarge, "tojson: an indent of {}", width);
      style.indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (a.has(2) && !a[2]->is(Kind::kNone)) {
    ASSIGN_OR_RETURN(const auto parts, iterate(runtime.meter, *a[2]));
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string()) {
      return base::error(Code::kInvalidArgument, "tojson: separators must be two strings");
    }
    style.item_separator = parts[0].text();
    style.key_separator = parts[1].text();
  }
  ASSIGN_OR_RETURN(std::string text, to_json(runtime.meter, self, style));
  return make_string(&runtime.meter, std::move(text));
}

Answer filter_safe(Runtime& runtime, const Value& self, const Args&) {
  ASSIGN_OR_RETURN(std::string text, to_text(runtime.meter, self));
  return make_string(&runtime.meter, std::move(text), true);
}

Answer filter_escape(Runtime& runtime, const Value& self, const Args&) {
  if (is_markup(self)) return self;
  ASSIGN_OR_RETURN(const std::string text, to_text(runtime.meter, self));
  ASSIGN_OR_RETURN(std::string escaped, escape_html(runtime.meter, text));
  return make_string(&runtime.meter, std::move(escaped), true);
}

Answer filter_format(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const std::string text, to_text(runtime.meter, self));
  return format_printf(runtime, text, args);
}

Answer filter_center(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("center", args, {"width"}));
  ASSIGN_OR_RETURN(const int64_t width, a.integer(0, 80));
  ASSIGN_OR_RETURN(const std::string text, to_text(runtime.meter, self));
  const int64_t spare = std::max<int64_t>(width - count_chars(text), 0);
  const int64_t left = spare / 2 + (spare & width & 1);  // where Python puts the odd blank
  Builder out(runtime.meter);
  for (int64_t i = 0; i < left && !out.overflowed(); ++i) out.add(' ');
  out.add(text);
  for (int64_t i = left; i < spare && !out.overflowed(); ++i) out.add(' ');
  return std::move(out).finish();
}

Answer filter_truncate(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a,
                   Bound::match("truncate", args, {"length", "killwords", "end", "leeway"}));
  ASSIGN_OR_RETURN(const int64_t length, a.integer(0, 255));
  ASSIGN_OR_RETURN(const std::string_view end, a.text(2, "..."));
  ASSIGN_OR_RETURN(const int64_t leeway, a.integer(3, 5));
  const int64_t end_chars = count_chars(end);
  if (!self.is_string() || length < end_chars || leeway < 0) {
    return base::error(Code::kInvalidArgument,
                       "truncate: a str and a length of at least {} are needed", end_chars);
  }
  if (self.string().num_chars <= length + leeway) return self;
  std::string_view kept = self.text().substr(0, char_offset(self.text(), length - end_chars));
  if (!a.flag(1, false)) {
    const size_t blank = kept.rfind(' ');
    kept = kept.substr(0, blank);
  }
  return make_string(&runtime.meter, std::string(kept) + std::string(end));
}

Answer filter_wordcount(Runtime& runtime, const Value& self, const Args&) {
  ASSIGN_OR_RETURN(const std::string text, to_text(runtime.meter, self));
  RETURN_IF_ERROR(spend_chars(runtime, text));
  int64_t words = 0;
  bool inside = false;
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(char_size(rest))) {
    const uint32_t code = first_char(rest);
    const bool word = is_alnum(code) || code == '_';
    words += word && !inside;
    inside = word;
  }
  return Value::integer(words);
}

struct Entry {
  std::string_view name;
  Builtin function;
};

constexpr Entry kFilters[] = {
    {"string", filter_string},
    {"upper", filter_map_text<upper>},
    {"lower", filter_map_text<lower>},
    {"capitalize", filter_map_text<capitalize>},
    {"title", filter_map_text<title>},
    {"trim", filter_trim},
    {"replace", filter_replace},
    {"indent", filter_indent},
    {"default", filter_default},
    {"d", filter_default},
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"round", filter_round},
    {"tojson", filter_tojson},
    {"safe", filter_safe},
    {"escape", filter_escape},
    {"e", filter_escape},
    {"format", filter_format},
    {"center", filter_center},
    {"truncate", filter_truncate},
    {"wordcount", filter_wordcount},
};

}  // namespace

Builtin find_filter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return find_sequence_filter(name);
}

}  // namespace text::jinja
