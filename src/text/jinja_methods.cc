// Methods of str, dict and list, attribute access and the functions of the environment.
#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace text::jinja {

using base::Code;

namespace {

using Answer = base::Result<Value>;

base::Error wrong_type(std::string_view function, std::string_view expected, const Value& value) {
  return base::error(Code::kInvalidArgument, "{}: expected {}, got '{}'", function, expected,
                     type_name(value));
}

Answer text_list(Runtime& runtime, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) {
    ASSIGN_OR_RETURN(Value item, make_string(&runtime.meter, std::string(part)));
    items.push_back(std::move(item));
  }
  return make_list(&runtime.meter, std::move(items));
}

Answer split_with(Runtime& runtime, const Value& self, const Args& args, bool from_right) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("split", args, {"sep", "maxsplit"}));
  ASSIGN_OR_RETURN(const int64_t max, a.integer(1, -1));
  std::optional<std::string_view> separator;
  if (a.has(0) && !a[0]->is(Kind::kNone)) {
    ASSIGN_OR_RETURN(separator, a.text(0, ""));
    if (separator->empty()) return base::error(Code::kInvalidArgument, "split: empty separator");
  }
  RETURN_IF_ERROR(
      spend(runtime.meter, static_cast<int64_t>(self.text().size()) * (separator ? 2 : 12)));
  return text_list(runtime, from_right ? rsplit(self.text(), separator, max)
                                       : split(self.text(), separator, max));
}

Answer str_split(Runtime& runtime, const Value& self, const Args& args) {
  return split_with(runtime, self, args, false);
}
Answer str_rsplit(Runtime& runtime, const Value& self, const Args& args) {
  return split_with(runtime, self, args, true);
}

Answer strip_side(Runtime& runtime, const Value& self, const Args& args, Side side) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("strip", args, {"chars"}));
  std::optional<std::string_view> chars;
  if (a.has(0) && !a[0]->is(Kind::kNone)) {
    ASSIGN_OR_RETURN(chars, a.text(0, ""));
    RETURN_IF_ERROR(spend(runtime.meter, static_cast<int64_t>(chars->size())));
  }
  const std::string_view kept = strip(self.text(), side, chars);
  // Each character dropped was looked up among `chars`.
  const auto dropped = static_cast<int64_t>(self.text().size() - kept.size());
  RETURN_IF_ERROR(
      spend(runtime.meter, dropped * static_cast<int64_t>(chars ? chars->size() / 8 + 12 : 12)));
  return make_string(&runtime.meter, std::string(kept), self.string().markup);
}

Answer str_strip(Runtime& runtime, const Value& self, const Args& args) {
  return strip_side(runtime, self, args, Side::kBoth);
}
Answer str_lstrip(Runtime& runtime, const Value& self, const Args& args) {
  return strip_side(runtime, self, args, Side::kLeft);
}
Answer str_rstrip(Runtime& runtime, const Value& self, const Args& args) {
  return strip_side(runtime, self, args, Side::kRight);
}

Answer str_upper(Runtime& runtime, const Value& self, const Args&) {
  RETURN_IF_ERROR(spend_chars(runtime, self.text()));
  return make_string(&runtime.meter, upper(self.text()));
}
Answer str_lower(Runtime& runtime, const Value& self, const Args&) {
  RETURN_IF_ERROR(spend_chars(runtime, self.text()));
  return make_string(&runtime.meter, lower(self.text()));
}
Answer str_capitalize(Runtime& runtime, const Value& self, const Args&) {
  RETURN_IF_ERROR(spend_chars(runtime, self.text()));
  return make_string(&runtime.meter, capitalize(self.text()));
}

// str.title: a capital starts each run of letters.
Answer str_title(Runtime& runtime, const Value& self, const Args&) {
  RETURN_IF_ERROR(spend_chars(runtime, self.text()));
  RETURN_IF_ERROR(spend_chars(runtime, self.text()));
  std::string result;
  bool in_word = false;
  for (std::string_view rest = self.text(); !rest.empty(); rest.remove_prefix(char_size(rest))) {
    const std::string_view character = rest.substr(0, char_size(rest));
    result += in_word ? lower(character) : capitalize(character);
    in_word = is_alpha(first_char(rest));
  }
  return make_string(&runtime.meter, std::move(result));
}

// Python's start and end arguments, as a part of the text; nothing when start lies behind the end.
base::Result<std::optional<std::string_view>> window(const Value& self, const Bound& a,
                                                     size_t first) {
  const int64_t length = self.string().num_chars;
  const auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + length : at, 0, length);
  };
  const auto given = [&](size_t i) { return a.has(i) && !a[i]->is(Kind::kNone); };
  int64_t begin = 0, end = length;
  if (given(first)) {
    ASSIGN_OR_RETURN(begin, a.integer(first, 0));
    if (begin > length) return std::optional<std::string_view>();
    begin = clamp(begin);
  }
  if (given(first + 1)) {
    ASSIGN_OR_RETURN(end, a.integer(first + 1, 0));
    end = clamp(end);
  }
  if (begin > end) return std::optional<std::string_view>();
  const std::string_view text = self.text();
  const size_t from = char_offset(text, begin);
  return std::optional(
      text.substr(from, end == length ? std::string_view::npos : char_offset(text, end) - from));
}

Answer affix(Runtime& runtime, const Value& self, const Args& args, bool at_start) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match(at_start ? "startswith" : "endswith", args,
                                               {"prefix", "start", "end"}, 1));
  RETURN_IF_ERROR(spend(runtime.meter, a.has(1) ? static_cast<int64_t>(self.text().size()) : 8));
  ASSIGN_OR_RETURN(const auto text, window(self, a, 1));
  const auto matches = [&](const Value& item) {
    return text && (at_start ? text->starts_with(item.text()) : text->ends_with(item.text()));
  };
  if (a[0]->is_string()) {
    RETURN_IF_ERROR(spend(runtime.meter, static_cast<int64_t>(a[0]->text().size())));
    return Value::boolean(matches(*a[0]));
  }
  if (!a[0]->is(Kind::kList) || a[0]->list().flavor != List::Flavor::kTuple) {
    return wrong_type("startswith", "str or a tuple of str", *a[0]);
  }
  for (const Value& item : a[0]->list().items) {
    if (!item.is_string()) return wrong_type("startswith", "str", item);
    RETURN_IF_ERROR(spend(runtime.meter, static_cast<int64_t>(item.text().size())));
    if (matches(item)) return Value::boolean(true);
  }
  return Value::boolean(false);
}

Answer str_startswith(Runtime& runtime, const Value& self, const Args& args) {
  return affix(runtime, self, args, true);
}
Answer str_endswith(Runtime& runtime, const Value& self, const Args& args) {
  return affix(runtime, self, args, false);
}

// find, rfind, index and rindex: the character index of a part.
Answer locate(Runtime& runtime, const Value& self, const Args& args, bool last, bool required) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("find", args, {"sub", "start", "end"}, 1));
  ASSIGN_OR_RETURN(const std::string_view needle, a.text(0, ""));
  RETURN_IF_ERROR(
      spend(runtime.meter, static_cast<int64_t>(2 * self.text().size() + needle.size())));
  ASSIGN_OR_RETURN(const auto text, window(self, a, 1));
  if (text) {
    const size_t at = last ? rfind(*text, needle) : find(*text, needle);
    if (at != std::string_view::npos) {
      const auto before = static_cast<size_t>(text->data() - self.text().data());
      return Value::integer(count_chars(self.text().substr(0, before + at)));
    }
  }
  if (required) return base::error(Code::kInvalidArgument, "substring not found");
  return Value::integer(-1);
}

Answer str_find(Runtime& runtime, const Value& self, const Args& args) {
  return locate(runtime, self, args, false, false);
}
Answer str_rfind(Runtime& runtime, const Value& self, const Args& args) {
  return locate(runtime, self, args, true, false);
}
Answer str_index(Runtime& runtime, const Value& self, const Args& args) {
  return locate(runtime, self, args, false, true);
}
Answer str_rindex(Runtime& runtime, const Value& self, const Args& args) {
  return locate(runtime, self, args, true, true);
}

Answer str_count(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("count", args, {"sub", "start", "end"}, 1));
  ASSIGN_OR_RETURN(const std::string_view needle, a.text(0, ""));
  RETURN_IF_ERROR(
      spend(runtime.meter, static_cast<int64_t>(2 * self.text().size() + needle.size())));
  ASSIGN_OR_RETURN(const auto text, window(self, a, 1));
  if (!text) return Value::integer(0);
  if (needle.empty()) return Value::integer(count_chars(*text) + 1);
  int64_t count = 0;
  for (size_t at = find(*text, needle); at != std::string_view::npos;
       at = find(*text, needle, at + needle.size()))
    ++count;
  return Value::integer(count);
}

Answer str_replace(Runtime& runtime, const Value& self, const Args& args) {
  return find_filter("replace")(runtime, self, args);
}

Answer str_join(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("join", args, {"iterable"}, 1));
  ASSIGN_OR_RETURN(const auto items, iterate(runtime.meter, *a[0]));
  Builder out(runtime.meter);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) return wrong_type("join", "str", items[i]);
    if (i > 0) out.add(self.text());
    out.add(items[i].text());
    if (out.overflowed()) break;
  }
  return std::move(out).finish();
}

Answer str_splitlines(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("splitlines", args, {"keepends"}));
  if (a.flag(0, false))
    return base::error(Code::kUnsupported, "splitlines(keepends=True) is not supported");
  RETURN_IF_ERROR(spend_chars(runtime, self.text()));
  return text_list(runtime, split_lines(self.text()));
}

// removeprefix and removesuffix.
Answer remove_affix(Runtime& runtime, const Value& self, const Args& args, bool prefix) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("removeprefix", args, {"affix"}, 1));
  ASSIGN_OR_RETURN(const std::string_view part, a.text(0, ""));
  std::string_view text = self.text();
  if (prefix && text.starts_with(part)) text.remove_prefix(part.size());
  if (!prefix && text.ends_with(part)) text.remove_suffix(part.size());
  return make_string(&runtime.meter, std::string(text));
}

Answer str_removeprefix(Runtime& runtime, const Value& self, const Args& args) {
  return remove_affix(runtime, self, args, true);
}
Answer str_removesuffix(Runtime& runtime, const Value& self, const Args& args) {
  return remove_affix(runtime, self, args, false);
}

template <bool (*Is)(uint32_t)>
Answer str_all(Runtime& runtime, const Value& self, const Args&) {
  RETURN_IF_ERROR(spend_chars(runtime, self.text()));
  std::string_view rest = self.text();
  if (rest.empty()) return Value::boolean(false);
  for (; !rest.empty(); rest.remove_prefix(char_size(rest))) {
    if (!Is(first_char(rest))) return Value::boolean(false);
  }
  return Value::boolean(true);
}

// isupper and islower: there is a cased letter and none of the other case.
template <bool (*Is)(uint32_t), bool (*Other)(uint32_t)>
Answer str_cased(Runtime& runtime, const Value& self, const Args&) {
  RETURN_IF_ERROR(spend_chars(runtime, self.text()));
  bool found = false;
  for (std::string_view rest = self.text(); !rest.empty(); rest.remove_prefix(char_size(rest))) {
    if (Other(first_char(rest))) return Value::boolean(false);
    found |= Is(first_char(rest));
  }
  return Value::boolean(found);
}

Answer pad(Runtime& runtime, const Value& self, const Args& args, bool left) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("ljust", args, {"width", "fillchar"}, 1));
  ASSIGN_OR_RETURN(const int64_t width, a.integer(0, 0));
  ASSIGN_OR_RETURN(const std::string_view fill, a.text(1, " "));
  if (count_chars(fill) != 1)
    return base::error(Code::kInvalidArgument, "the fill must be one character");
  Builder out(runtime.meter);
  if (!left) out.add(self.text());
  for (int64_t i = self.string().num_chars; i < width && !out.overflowed(); ++i) out.add(fill);
  if (left) out.add(self.text());
  return std::move(out).finish();
}

Answer str_ljust(Runtime& runtime, const Value& self, const Args& args) {
  return pad(runtime, self, args, false);
}
Answer str_rjust(Runtime& runtime, const Value& self, const Args& args) {
  return pad(runtime, self, args, true);
}

// One replacement field of str.format without its braces: a number, a name or nothing.
Answer format_field(Runtime& runtime, std::string_view field, const Args& args, size_t& next) {
  if (field.find_first_of(":!.[") != std::string_view::npos) {
    return base::error(Code::kUnsupported, "format: the field '{{{}}}' is not supported",
                       field.substr(0, 40));
  }
  size_t index = 0;
  if (field.empty()) {
    index = next++;
  } else if (const auto end = field.data() + field.size();
             std::from_chars(field.data(), end, index).ptr != end) {
    for (const auto& [name, value] : args.named) {
      if (name == field) return value;
    }
    return base::error(Code::kInvalidArgument, "format: no argument '{}'", field.substr(0, 40));
  }
  (void)runtime;
  if (index >= args.positional.size())
    return base::error(Code::kInvalidArgument, "format: no argument {}", index);
  return args.positional[index];
}

Answer str_format(Runtime& runtime, const Value& self, const Args& args) {
  Builder out(runtime.meter);
  size_t next = 0;
  std::string_view rest = self.text();
  while (!rest.empty()) {
    const size_t brace = std::min(rest.find_first_of("{}"), rest.size());
    out.add(rest.substr(0, brace));
    rest.remove_prefix(brace);
    if (rest.empty()) break;
    if (rest.size() > 1 && rest[1] == rest[0]) {
      out.add(rest[0]);
      rest.remove_prefix(2);
      continue;
    }
    const size_t end = rest.find('}');
    if (rest[0] == '}' || end == std::string_view::npos) {
      return base::error(Code::kInvalidArgument, "format: a single brace in the format string");
    }
    ASSIGN_OR_RETURN(const Value value, format_field(runtime, rest.substr(1, end - 1), args, next));
    ASSIGN_OR_RETURN(const std::string text, to_text(runtime.meter, value));
    out.add(text);
    rest.remove_prefix(end + 1);
    if (out.overflowed()) break;
  }
  return std::move(out).finish();
}

Answer dict_view(Runtime& runtime, const Value& self, int part) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().items) {
    if (part == 2) {
      std::vector<Value> pair = {key, value};
      ASSIGN_OR_RETURN(Value item,
                       make_list(&runtime.meter, std::move(pair), List::Flavor::kTuple));
      items.push_back(std::move(item));
    } else {
      items.push_back(part == 0 ? key : value);
    }
  }
  return make_list(&runtime.meter, std::move(items), List::Flavor::kView);
}

Answer dict_keys(Runtime& runtime, const Value& self, const Args&) {
  return dict_view(runtime, self, 0);
}
Answer dict_values(Runtime& runtime, const Value& self, const Args&) {
  return dict_view(runtime, self, 1);
}
Answer dict_items(Runtime& runtime, const Value& self, const Args&) {
  return dict_view(runtime, self, 2);
}

Answer dict_get(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("get", args, {"key", "default"}, 1));
  ASSIGN_OR_RETURN(const Value* found, find_key(runtime.meter, self.dict(), *a[0]));
  if (found != nullptr) return *found;
  return a.has(1) ? *a[1] : Value::none();
}

Answer copy_of(Runtime&, const Value& self, const Args&) {
  return self;
}

Answer list_count(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("count", args, {"value"}, 1));
  int64_t count = 0;
  for (const Value& item : self.list().items) {
    ASSIGN_OR_RETURN(const bool same, equal(runtime.meter, item, *a[0]));
    count += same;
  }
  return Value::integer(count);
}

Answer list_index(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound a, Bound::match("index", args, {"value"}, 1));
  for (size_t i = 0; i < self.list().items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool same, equal(runtime.meter, self.list().items[i], *a[0]));
    if (same) return Value::integer(static_cast<int64_t>(i));
  }
  return base::error(Code::kInvalidArgument, "the value is not in the list");
}

struct Entry {
  std::string_view name;
  Builtin function;
};

constexpr Entry kStringMethods[] = {
    {"split", str_split},
    {"rsplit", str_rsplit},
    {"strip", str_strip},
    {"lstrip", str_lstrip},
    {"rstrip", str_rstrip},
    {"upper", str_upper},
    {"lower", str_lower},
    {"title", str_title},
    {"capitalize", str_capitalize},
    {"startswith", str_startswith},
    {"endswith", str_endswith},
    {"find", str_find},
    {"rfind", str_rfind},
    {"index", str_index},
    {"rindex", str_rindex},
    {"count", str_count},
    {"replace", str_replace},
    {"join", str_join},
    {"splitlines", str_splitlines},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"isdigit", str_all<is_digit>},
    {"isdecimal", str_all<is_digit>},
    {"isnumeric", str_all<is_digit>},
    {"isalpha", str_all<is_alpha>},
    {"isalnum", str_all<is_alnum>},
    {"isspace", str_all<is_space>},
    {"isupper", str_cased<is_upper, is_lower>},
    {"islower", str_cased<is_lower, is_upper>},
    {"ljust", str_ljust},
    {"rjust", str_rjust},
    {"format", str_format},
};

constexpr Entry kDictMethods[] = {
    {"keys", dict_keys}, {"values", dict_values}, {"items", dict_items},
    {"get", dict_get},   {"copy", copy_of},
};

constexpr Entry kListMethods[] = {{"count", list_count}, {"index", list_index}, {"copy", copy_of}};

// Methods that exist in Python but are not here, so that using one is an error rather than
// undefined.
constexpr std::string_view kOtherStringMethods[] = {
    "casefold",  "center",       "encode",      "expandtabs", "format_map",
    "isascii",   "isidentifier", "isprintable", "istitle",    "maketrans",
    "partition", "rpartition",   "swapcase",    "translate",  "zfill"};
constexpr std::string_view kMutators[] = {"append",  "clear",      "pop",    "reverse",
                                          "insert",  "sort",       "extend", "remove",
                                          "popitem", "setdefault", "update"};

template <typename Table>
Builtin search(const Table& table, std::string_view name) {
  for (const Entry& entry : table) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace

Answer find_method(Runtime& runtime, const Value& self, std::string_view name) {
  Builtin function = nullptr;
  if (self.is_string()) {
    function = search(kStringMethods, name);
    if (function == nullptr &&
        std::count(std::begin(kOtherStringMethods), std::end(kOtherStringMethods), name) > 0) {
      return base::error(Code::kUnsupported, "the method str.{} is not supported", name);
    }
  } else if (self.is(Kind::kDict)) {
    function = search(kDictMethods, name);
  } else if (self.is(Kind::kList) && self.list().flavor <= List::Flavor::kTuple) {
    function = search(kListMethods, name);
  }
  const bool mutates = (self.is(Kind::kDict) || self.is(Kind::kList)) &&
                       std::count(std::begin(kMutators), std::end(kMutators), name) > 0;
  if (mutates) {
    return make_undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(self)));
  }
  if (function == nullptr) return Value();
  auto object = std::make_shared<Callable>();
  object->name = name;
  object->function = function;
  object->self = self;
  object->depth = self.depth() + 1;
  RETURN_IF_ERROR(charge(&runtime.meter, *object, static_cast<int64_t>(name.size())));
  return Value(Kind::kCallable, std::move(object));
}

}  // namespace text::jinja
