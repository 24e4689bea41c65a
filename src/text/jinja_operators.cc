#include "text/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "text/jinja_text.h"

namespace text::jinja {

using base::Code;

namespace {

using Answer = base::Result<Value>;

constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

base::Error bad_operands(Op op, const Value& a, const Value& b) {
  return base::error(Code::kInvalidArgument, "unsupported operand types for {}: '{}' and '{}'",
                     kSigns[static_cast<size_t>(op)], type_name(a), type_name(b));
}

base::Error overflow() {
  return base::error(Code::kUnsupported, "an integer beyond 64 bits");
}

Answer power(int64_t base_value, int64_t exponent) {
  if (exponent < 0) {
    if (base_value == 0)
      return base::error(Code::kInvalidArgument, "0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base_value), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base_value, &result))
      return overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base_value, base_value, &base_value))
      return overflow();
  }
  return Value::integer(result);
}

Answer integer_binary(Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Op::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return overflow();
      return Value::integer(result);
    case Op::kSub:
      if (__builtin_sub_overflow(a, b, &result)) return overflow();
      return Value::integer(result);
    case Op::kMul:
      if (__builtin_mul_overflow(a, b, &result)) return overflow();
      return Value::integer(result);
    case Op::kPow:
      return power(a, b);
    default:
      break;
  }
  if (b == 0) return base::error(Code::kInvalidArgument, "division by zero");
  if (op == Op::kDiv) {
    constexpr int64_t kExact = int64_t{1} << 53;
    if (std::max({a, -(a + 1), b, -(b + 1)}) >= kExact) return overflow();
    return Value::real(static_cast<double>(a) / static_cast<double>(b));
  }
  if (a == INT64_MIN && b == -1)
    return op == Op::kMod ? Answer(Value::integer(0)) : Answer(overflow());
  // Python rounds the quotient down, so the remainder has the divisor's sign.
  const int64_t quotient = a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
  return Value::integer(op == Op::kMod ? a - quotient * b : quotient);
}

Answer real_binary(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return Value::real(a + b);
    case Op::kSub:
      return Value::real(a - b);
    case Op::kMul:
      return Value::real(a * b);
    case Op::kPow:
      if (a == 0 && b < 0)
        return base::error(Code::kInvalidArgument, "0.0 cannot be raised to a negative power");
      if (a < 0 && b != std::floor(b)) return base::error(Code::kUnsupported, "a complex number");
      return Value::real(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return base::error(Code::kInvalidArgument, "float division by zero");
  if (op == Op::kDiv) return Value::real(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (rest == 0) rest = std::copysign(0.0, b);
  if (op == Op::kMod) return Value::real(rest);
  double quotient = (a - rest) / b;
  if (quotient != 0) {
    const double down = std::floor(quotient);
    quotient = quotient - down > 0.5 ? down + 1 : down;
  } else {
    quotient = std::copysign(0.0, a / b);
  }
  return Value::real(quotient);
}

Answer add_strings(Runtime& runtime, const Value& a, const Value& b) {
  const bool markup = a.string().markup || b.string().markup;
  Builder out(runtime.meter);
  for (const Value* side : {&a, &b}) {
    if (markup && !side->string().markup) {
      ASSIGN_OR_RETURN(const std::string escaped, escape_html(runtime.meter, side->text()));
      out.add(escaped);
    } else {
      out.add(side->text());
    }
  }
  return std::move(out).finish(markup);
}

bool plain_list(const Value& value) {
  return value.is(Kind::kList) && value.list().flavor <= List::Flavor::kTuple;
}

Answer add_lists(Runtime& runtime, const Value& a, const Value& b) {
  const auto& x = a.list().items;
  const auto& y = b.list().items;
  RETURN_IF_ERROR(
      spend(runtime.meter, static_cast<int64_t>((x.size() + y.size()) * sizeof(Value))));
  std::vector<Value> items;
  items.reserve(x.size() + y.size());
  items.insert(items.end(), x.begin(), x.end());
  items.insert(items.end(), y.begin(), y.end());
  return make_list(&runtime.meter, std::move(items), a.list().flavor);
}

Answer repeat(Runtime& runtime, const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const size_t piece =
      value.is_string() ? value.text().size() : value.list().items.size() * sizeof(Value);
  int64_t bytes = 0;  // known before any of them is made
  if (__builtin_mul_overflow(static_cast<int64_t>(piece), count, &bytes) ||
      bytes > runtime.meter.live_bytes_max - runtime.meter.live_bytes) {
    return base::error(Code::kTooLarge, "the chat template exceeds its limit of memory");
  }
  RETURN_IF_ERROR(spend(runtime.meter, bytes));
  if (value.is_string()) {
    Builder out(runtime.meter);
    for (int64_t i = 0; i < count && piece > 0; ++i) out.add(value.text());
    return std::move(out).finish(value.string().markup);
  }
  const auto& source = value.list().items;
  std::vector<Value> items;
  items.reserve(source.size() * static_cast<size_t>(count));
  for (int64_t i = 0; i < count && !source.empty(); ++i)
    items.insert(items.end(), source.begin(), source.end());
  return make_list(&runtime.meter, std::move(items), value.list().flavor);
}

// One conversion of a printf format without its '%': flags, width and precision are in `spec`.
Answer convert(Runtime& runtime, std::string_view spec, char type, const Value& value) {
  const bool plain = spec.empty();
  if (plain && type == 's') {
    ASSIGN_OR_RETURN(std::string text, to_text(runtime.meter, value));
    return make_string(&runtime.meter, std::move(text));
  }
  if (plain && type == 'r') {
    ASSIGN_OR_RETURN(std::string text, to_repr(runtime.meter, value));
    return make_string(&runtime.meter, std::move(text));
  }
  const bool small =
      spec.size() <= 8 && spec.find_first_not_of("0123456789.-+ #") == std::string_view::npos;
  if (value.is_undefined()) return undefined_error(value);
  if (!small || !value.is_number()) {
    return base::error(Code::kUnsupported, "the conversion '%{}{}' of '{}' is not supported", spec,
                       type, type_name(value));
  }
  std::string format(1, '%');
  format += spec;
  char buffer[512];
  int size = -1;
  if ((type == 'd' || type == 'i') && value.is_integral()) {
    size = snprintf(buffer, sizeof buffer, (format + "lld").c_str(),
                    static_cast<long long>(value.as_int()));
  } else if (type == 'f' || type == 'g' || type == 'e') {
    size = snprintf(buffer, sizeof buffer, (format + type).c_str(), value.as_real());
  }
  if (size < 0 || size >= static_cast<int>(sizeof buffer)) {
    return base::error(Code::kUnsupported, "the conversion '%{}{}' of '{}' is not supported", spec,
                       type, type_name(value));
  }
  return make_string(&runtime.meter, std::string(buffer, static_cast<size_t>(size)));
}

}  // namespace

base::Result<Value> format_printf(Runtime& runtime, std::string_view format, const Args& args) {
  Builder out(runtime.meter);
  size_t next = 0;
  for (size_t i = 0; i < format.size() && !out.overflowed();) {
    const size_t percent = std::min(format.find('%', i), format.size());
    out.add(format.substr(i, percent - i));
    if (percent == format.size()) break;
    const size_t type = format.find_first_not_of("0123456789.-+ #", percent + 1);
    if (type == std::string_view::npos)
      return base::error(Code::kInvalidArgument, "incomplete format");
    i = type + 1;
    if (format[type] == '%') {
      out.add('%');
      continue;
    }
    if (format[type] == '(' || !args.named.empty())
      return base::error(Code::kUnsupported, "%(name)s is not supported");
    if (next >= args.positional.size())
      return base::error(Code::kInvalidArgument, "not enough arguments for format string");
    const std::string_view spec = format.substr(percent + 1, type - percent - 1);
    ASSIGN_OR_RETURN(const Value text,
                     convert(runtime, spec, format[type], args.positional[next++]));
    out.add(text.text());
  }
  if (next < args.positional.size()) {
    return base::error(Code::kInvalidArgument,
                       "not all arguments converted during string formatting");
  }
  return std::move(out).finish();
}

base::Result<Value> apply_binary(Runtime& runtime, Op op, const Value& a, const Value& b) {
  RETURN_IF_ERROR(spend(runtime.meter, 8));
  if (a.is_undefined()) return undefined_error(a);
  if (op == Op::kMod && a.is_string()) {
    if (a.string().markup) return base::error(Code::kUnsupported, "% on the result of safe");
    Args args;
    const bool tuple = b.is(Kind::kList) && b.list().flavor == List::Flavor::kTuple;
    args.positional = tuple ? b.list().items : std::vector<Value>{b};
    return format_printf(runtime, a.text(), args);
  }
  if (b.is_undefined()) return undefined_error(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return integer_binary(op, a.as_int(), b.as_int());
    return real_binary(op, a.as_real(), b.as_real());
  }
  if (op == Op::kAdd) {
    if (a.is_string() && b.is_string()) return add_strings(runtime, a, b);
    if (plain_list(a) && plain_list(b) && a.list().flavor == b.list().flavor)
      return add_lists(runtime, a, b);
  }
  if (op == Op::kMul) {
    if ((a.is_string() || plain_list(a)) && b.is_integral()) return repeat(runtime, a, b.as_int());
    if ((b.is_string() || plain_list(b)) && a.is_integral()) return repeat(runtime, b, a.as_int());
  }
  return bad_operands(op, a, b);
}

base::Result<Value> apply_unary(Op op, const Value& a) {
  if (op == Op::kNot) return Value::boolean(!truth(a));
  if (a.is_undefined()) return undefined_error(a);
  if (!a.is_number())
    return base::error(Code::kInvalidArgument, "bad operand type for unary sign: '{}'",
                       type_name(a));
  if (a.is(Kind::kFloat)) return Value::real(op == Op::kSub ? -a.as_real() : a.as_real());
  if (op == Op::kAdd) return Value::integer(a.as_int());
  if (a.as_int() == INT64_MIN) return overflow();
  return Value::integer(-a.as_int());
}

base::Result<bool> apply_compare(Runtime& runtime, Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::kEq:
      return equal(runtime.meter, a, b);
    case Op::kNe: {
      ASSIGN_OR_RETURN(const bool same, equal(runtime.meter, a, b));
      return !same;
    }
    case Op::kIn:
    case Op::kNotIn: {
      ASSIGN_OR_RETURN(const Value found, contains(runtime, b, a));
      return truth(found) == (op == Op::kIn);
    }
    default:
      break;
  }
  if (a.is_undefined()) return undefined_error(a);
  if (b.is_undefined()) return undefined_error(b);
  if (a.is_number() && b.is_number() && (std::isnan(a.as_real()) || std::isnan(b.as_real())))
    return false;
  ASSIGN_OR_RETURN(const int order, compare(runtime.meter, a, b));
  if (op == Op::kLt) return order < 0;
  if (op == Op::kLe) return order <= 0;
  return op == Op::kGt ? order > 0 : order >= 0;
}

namespace {

struct Range {
  int64_t begin = 0, step = 1, count = 0;
};

// The indices that Python's slice.indices() visits in a sequence of `length`.
base::Result<Range> slice_range(int64_t length, const Value (&bounds)[3]) {
  for (const Value& bound : bounds) {
    if (!bound.is(Kind::kNone) && !bound.is_integral()) {
      return base::error(Code::kInvalidArgument, "slice indices must be integers or None, not '{}'",
                         type_name(bound));
    }
  }
  Range range;
  if (!bounds[2].is(Kind::kNone)) range.step = bounds[2].as_int();
  if (range.step == 0) return base::error(Code::kInvalidArgument, "slice step cannot be zero");
  const bool down = range.step < 0;
  const int64_t low = down ? -1 : 0;
  const int64_t high = down ? length - 1 : length;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.is(Kind::kNone)) return otherwise;
    const int64_t at = value.as_int();
    return std::clamp(at < 0 ? at + length : at, low, high);
  };
  range.begin = bound(bounds[0], down ? high : low);
  const int64_t end = bound(bounds[1], down ? low : high);
  const int64_t span = down ? range.begin - end : end - range.begin;
  if (span <= 0) return range;
  const uint64_t stride =
      down ? 0 - static_cast<uint64_t>(range.step) : static_cast<uint64_t>(range.step);
  range.count = static_cast<int64_t>((static_cast<uint64_t>(span) - 1) / stride) + 1;
  return range;
}

Answer slice_string(Runtime& runtime, const String& string, const Range& range) {
  const std::string_view text = string.text;
  const bool ascii = string.num_chars == static_cast<int64_t>(text.size());
  const auto offset = [&](int64_t index) {
    return ascii ? static_cast<size_t>(index) : char_offset(text, index);
  };
  RETURN_IF_ERROR(spend(runtime.meter, ascii ? range.count : static_cast<int64_t>(text.size())));
  if (range.step == 1 && range.count > 0) {
    const size_t begin = offset(range.begin);
    return make_string(&runtime.meter,
                       std::string(text.substr(begin, offset(range.begin + range.count) - begin)));
  }
  std::vector<size_t> starts;  // of all characters
  for (size_t at = 0; at < text.size(); at += char_size(text.substr(at))) starts.push_back(at);
  RETURN_IF_ERROR(spend(runtime.meter, static_cast<int64_t>(starts.size() * 8)));
  Builder out(runtime.meter);
  for (int64_t i = 0, at = range.begin; i < range.count; ++i) {
    const size_t start = starts[static_cast<size_t>(at)];
    out.add(text.substr(start, char_size(text.substr(start))));
    if (i + 1 < range.count) at += range.step;
  }
  return std::move(out).finish();
}

}  // namespace

base::Result<Value> slice(Runtime& runtime, const Value& value, const Value (&bounds)[3]) {
  if (value.is_undefined()) return undefined_error(value);
  const bool list = value.is(Kind::kList) && value.list().flavor <= List::Flavor::kRange;
  if (!list && !value.is_string()) {
    return base::error(Code::kInvalidArgument, "'{}' object cannot be sliced", type_name(value));
  }
  const int64_t length =
      list ? static_cast<int64_t>(value.list().items.size()) : value.string().num_chars;
  ASSIGN_OR_RETURN(const Range range, slice_range(length, bounds));
  if (!list) return slice_string(runtime, value.string(), range);
  RETURN_IF_ERROR(spend(runtime.meter, range.count * static_cast<int64_t>(sizeof(Value))));
  std::vector<Value> items;
  for (int64_t i = 0, at = range.begin; i < range.count; ++i) {
    items.push_back(value.list().items[static_cast<size_t>(at)]);
    if (i + 1 < range.count) at += range.step;
  }
  return make_list(&runtime.meter, std::move(items), value.list().flavor);
}

}  // namespace text::jinja
