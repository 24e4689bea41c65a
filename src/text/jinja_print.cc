// str(), repr() and json.dumps of template values.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_sort.h"
#include "text/jinja_text.h"
#include "text/jinja_value.h"

namespace text::jinja {

using base::Code;

// The shortest digits that read back as the same number, laid out as Python does: plain from 1e-4
// up to 1e16.
std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const char* digits_of_exponent = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, end, exponent);
  if (exponent < -4 || exponent >= 16)
    return std::string(text);  // 1e+16, 1e-05: the same in both languages
  std::string plain(
      buffer, std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr);
  if (plain.find('.') == std::string::npos) plain += ".0";
  return plain;
}

namespace {

constexpr std::string_view kHex = "0123456789abcdef";

void add_hex(Builder& out, uint32_t code, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out.add(kHex[(code >> shift) & 15]);
}

void add_repr(Builder& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out.add(quote);
  for (; !text.empty(); text.remove_prefix(char_size(text))) {
    const uint32_t code = first_char(text);
    if (code == static_cast<uint32_t>(quote) || code == '\\') {
      out.add('\\');
      out.add(static_cast<char>(code));
    } else if (code == '\n') {
      out.add("\\n");
    } else if (code == '\r') {
      out.add("\\r");
    } else if (code == '\t') {
      out.add("\\t");
    } else if (is_printable(code)) {
      out.add(text.substr(0, char_size(text)));
    } else if (code < 0x100) {
      out.add("\\x");
      add_hex(out, code, 2);
    } else {
      out.add(code < 0x10000 ? "\\u" : "\\U");
      add_hex(out, code, code < 0x10000 ? 4 : 8);
    }
  }
  out.add(quote);
}

base::Result<void> add_value(Meter& meter, Builder& out, const Value& value, int depth);

base::Result<void> add_list(Meter& meter, Builder& out, const List& list, int depth) {
  const bool tuple = list.flavor == List::Flavor::kTuple;
  out.add(tuple ? '(' : '[');
  bool first = true;
  for (const Value& item : list.items) {
    if (!first) out.add(", ");
    first = false;
    RETURN_IF_ERROR(add_value(meter, out, item, depth + 1));
  }
  if (tuple && list.items.size() == 1) out.add(',');
  out.add(tuple ? ')' : ']');
  return {};
}

base::Result<void> add_dict(Meter& meter, Builder& out, const Dict& dict, int depth) {
  out.add('{');
  bool first = true;
  for (const auto& [key, item] : dict.items) {
    if (!first) out.add(", ");
    first = false;
    RETURN_IF_ERROR(add_value(meter, out, key, depth + 1));
    out.add(": ");
    RETURN_IF_ERROR(add_value(meter, out, item, depth + 1));
  }
  out.add('}');
  return {};
}

base::Result<void> add_value(Meter& meter, Builder& out, const Value& value, int depth) {
  RETURN_IF_ERROR(spend(meter, 8));
  if (depth > meter.value_depth_max)
    return base::error(Code::kTooLarge, "a printed value is nested too deeply");
  switch (value.kind()) {
    case Kind::kUndefined:
      out.add("Undefined");
      return {};
    case Kind::kNone:
      out.add("None");
      return {};
    case Kind::kBool:
      out.add(value.as_bool() ? "True" : "False");
      return {};
    case Kind::kInt:
      out.add(std::to_string(value.as_int()));
      return {};
    case Kind::kFloat:
      out.add(float_repr(value.as_real()));
      return {};
    case Kind::kString:
      RETURN_IF_ERROR(spend(meter, static_cast<int64_t>(value.text().size()) * 12));
      if (value.string().markup) out.add("Markup(");
      add_repr(out, value.text());
      if (value.string().markup) out.add(')');
      return {};
    case Kind::kDict:
      return add_dict(meter, out, value.dict(), depth);
    case Kind::kList: {
      const auto flavor = value.list().flavor;
      if (flavor == List::Flavor::kList || flavor == List::Flavor::kTuple) {
        return add_list(meter, out, value.list(), depth);
      }
      break;
    }
    default:
      break;
  }
  return base::error(Code::kUnsupported, "printing a {} is not supported", type_name(value));
}

}  // namespace

base::Result<std::string> to_repr(Meter& meter, const Value& value) {
  Builder out(meter);
  RETURN_IF_ERROR(add_value(meter, out, value, 0));
  return std::move(out).text();
}

base::Result<std::string> to_text(Meter& meter, const Value& value) {
  if (value.is_undefined()) return std::string();
  if (!value.is_string()) return to_repr(meter, value);
  RETURN_IF_ERROR(spend(meter, static_cast<int64_t>(value.text().size())));
  return std::string(value.text());
}

namespace {

// One pass over a value that writes JSON as Python's json module lays it out.
class JsonWriter {
 public:
  JsonWriter(Meter& meter, const JsonStyle& style) : meter_(meter), style_(style), out_(meter) {}

  base::Result<void> write(const Value& value, int level) {
    RETURN_IF_ERROR(spend(meter_, 8));
    if (level > meter_.value_depth_max)
      return base::error(Code::kTooLarge, "a JSON value is nested too deeply");
    switch (value.kind()) {
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        out_.add(scalar(value));
        return {};
      case Kind::kString:
        return write_string(value.text());
      case Kind::kDict:
        return write_dict(value.dict(), level);
      case Kind::kList: {
        const auto flavor = value.list().flavor;
        if (flavor != List::Flavor::kList && flavor != List::Flavor::kTuple) break;
        return write_list(value.list(), level);
      }
      default:
        break;
    }
    return base::error(Code::kInvalidArgument, "Object of type {} is not JSON serializable",
                       type_name(value));
  }

  base::Result<std::string> finish() && { return std::move(out_).text(); }

 private:
  static std::string scalar(const Value& value) {
    if (value.is(Kind::kNone)) return "null";
    if (value.is(Kind::kBool)) return value.as_bool() ? "true" : "false";
    if (value.is(Kind::kInt)) return std::to_string(value.as_int());
    const double real = value.as_real();
    if (std::isnan(real)) return "NaN";
    if (std::isinf(real)) return real < 0 ? "-Infinity" : "Infinity";
    return float_repr(real);
  }

  void write_escape(uint32_t unit) {
    out_.add("\\u");
    add_hex(out_, unit, 4);
  }

  base::Result<void> write_string(std::string_view text) {
    RETURN_IF_ERROR(spend(meter_, static_cast<int64_t>(text.size())));
    out_.add('"');
    while (!text.empty()) {
      const size_t plain = plain_bytes(text);
      out_.add(text.substr(0, plain));
      text.remove_prefix(plain);
      if (text.empty()) break;
      write_special(first_char(text));
      text.remove_prefix(char_size(text));
    }
    out_.add('"');
    return {};
  }

  // Bytes at the front that need no escape.
  size_t plain_bytes(std::string_view text) const {
    size_t at = 0;
    for (; at < text.size(); ++at) {
      const auto byte = static_cast<unsigned char>(text[at]);
      if (byte < 0x20 || byte == '"' || byte == '\\' || (style_.ensure_ascii && byte >= 0x7f))
        break;
    }
    return at;
  }

  void write_special(uint32_t code) {
    switch (code) {
      case '"':
        return out_.add("\\\"");
      case '\\':
        return out_.add("\\\\");
      case '\n':
        return out_.add("\\n");
      case '\r':
        return out_.add("\\r");
      case '\t':
        return out_.add("\\t");
      case '\b':
        return out_.add("\\b");
      case '\f':
        return out_.add("\\f");
      default:
        break;
    }
    if (code < 0x10000) return write_escape(code);
    write_escape(0xd800 + ((code - 0x10000) >> 10));
    write_escape(0xdc00 + ((code - 0x10000) & 0x3ff));
  }

  void new_line(int level) {
    if (!style_.indented) return;
    out_.add('\n');
    for (int i = 0; i < level; ++i) out_.add(style_.indent);
  }

  base::Result<void> write_list(const List& list, int level) {
    if (list.items.empty()) {
      out_.add("[]");
      return {};
    }
    out_.add('[');
    bool first = true;
    for (const Value& item : list.items) {
      if (!first) out_.add(style_.item_separator);
      first = false;
      new_line(level + 1);
      RETURN_IF_ERROR(write(item, level + 1));
    }
    new_line(level);
    out_.add(']');
    return {};
  }

  base::Result<std::vector<const std::pair<Value, Value>*>> ordered(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> items;
    base::Result<void> status;
    const auto order = stable_order(dict.items.size(), [&](size_t a, size_t b) {
      if (!style_.sort_keys || !status.ok()) return false;
      auto result = compare(meter_, dict.items[a].first, dict.items[b].first);
      if (!result.ok()) status = std::move(result).error();
      return result.ok() && *result < 0;
    });
    for (const size_t index : order) items.push_back(&dict.items[index]);
    RETURN_IF_ERROR(std::move(status));
    return items;
  }

  base::Result<void> write_dict(const Dict& dict, int level) {
    if (dict.items.empty()) {
      out_.add("{}");
      return {};
    }
    ASSIGN_OR_RETURN(const auto items, ordered(dict));
    out_.add('{');
    bool first = true;
    for (const auto* item : items) {
      if (!first) out_.add(style_.item_separator);
      first = false;
      new_line(level + 1);
      const Value& key = item->first;
      if (key.is_string()) {
        RETURN_IF_ERROR(write_string(key.text()));
      } else if (key.is_number() || key.is(Kind::kNone)) {
        out_.add('"');
        out_.add(scalar(key));
        out_.add('"');
      } else {
        return base::error(Code::kInvalidArgument,
                           "keys must be str, int, float, bool or None, not {}", type_name(key));
      }
      out_.add(style_.key_separator);
      RETURN_IF_ERROR(write(item->second, level + 1));
    }
    new_line(level);
    out_.add('}');
    return {};
  }

  Meter& meter_;
  const JsonStyle& style_;
  Builder out_;
};

}  // namespace

base::Result<std::string> to_json(Meter& meter, const Value& value, const JsonStyle& style) {
  JsonWriter writer(meter, style);
  RETURN_IF_ERROR(writer.write(value, 0));
  return std::move(writer).finish();
}

}  // namespace text::jinja
