#include "grammar/schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <span>
#include <vector>

namespace grammar {
namespace {

using base::Code;
using base::error;
using nlohmann::ordered_json;
using Names = std::span<const std::string_view>;

constexpr std::string_view kNeverEnforced[] = {"not",
                                               "if",
                                               "then",
                                               "else",
                                               "dependencies",
                                               "contains",
                                               "minContains",
                                               "maxContains",
                                               "$dynamicRef",
                                               "$recursiveRef",
                                               "additionalItems",
                                               "dependentRequired",
                                               "dependentSchemas"};
// In the library's order: the first that is there is the one that it reads.
constexpr std::string_view kGroups[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
constexpr std::string_view kTyped[] = {"type",
                                       "multipleOf",
                                       "minimum",
                                       "maximum",
                                       "exclusiveMinimum",
                                       "exclusiveMaximum",
                                       "minLength",
                                       "maxLength",
                                       "pattern",
                                       "prefixItems",
                                       "items",
                                       "unevaluatedItems",
                                       "minItems",
                                       "maxItems",
                                       "uniqueItems",
                                       "properties",
                                       "required",
                                       "patternProperties",
                                       "propertyNames",
                                       "additionalProperties",
                                       "unevaluatedProperties",
                                       "minProperties",
                                       "maxProperties"};
constexpr size_t kNameBytesShown = 64;  // of a property, in the place that an error names
constexpr std::string_view kMakesObject[] = {"properties", "additionalProperties",
                                             "unevaluatedProperties"};
constexpr std::string_view kMakesArray[] = {"items", "prefixItems", "unevaluatedItems"};
constexpr std::string_view kOfObjects[] = {"properties",           "required",
                                           "patternProperties",    "propertyNames",
                                           "additionalProperties", "unevaluatedProperties",
                                           "minProperties",        "maxProperties"};
constexpr std::string_view kOfArrays[] = {"prefixItems", "items",    "unevaluatedItems",
                                          "minItems",    "maxItems", "uniqueItems"};
constexpr std::string_view kCounts[] = {"minLength", "maxLength",     "minItems",
                                        "maxItems",  "minProperties", "maxProperties"};

bool contains(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// The first of `names` that the schema has.
std::string_view first_of(const ordered_json& schema, Names names) {
  for (const std::string_view name : names) {
    if (schema.contains(name)) return name;
  }
  return {};
}

bool has_type(const ordered_json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  return type == "integer" &&
         (value.is_number_integer() ||
          (value.is_number() && std::floor(value.get<double>()) == value.get<double>()));
}

class Walk {
 public:
  explicit Walk(const ordered_json& root) : root_(root) {}

  base::Result<void> schema(const ordered_json& s, const std::string& place, int depth) {
    if (depth > kSchemaDepthMax) {
      return error(Code::kTooLarge, "the schema nests more than {} deep at {}", kSchemaDepthMax,
                   place);
    }
    if (++nodes_ > kSchemaNodesMax) {
      return error(Code::kTooLarge, "the schema has more than {} subschemas", kSchemaNodesMax);
    }
    if (s.is_boolean()) return {};
    if (!s.is_object())
      return error(Code::kInvalidArgument, "{} must be an object or a boolean", place);
    if (const auto name = first_of(s, kNeverEnforced); !name.empty()) return refused(name, place);
    const std::string_view group = first_of(s, kGroups);
    return group.empty() ? typed(s, place, depth) : grouped(s, group, place, depth);
  }

 private:
  static base::Error refused(std::string_view name, const std::string& place) {
    return error(Code::kUnsupported, "`{}` at {} is not enforced", name, place);
  }

  base::Result<void> grouped(const ordered_json& s, std::string_view group,
                             const std::string& place, int depth) {
    const bool is_value = group == "const" || group == "enum";
    for (const auto& [name, value] : s.items()) {
      if (name == group || (is_value && name == "type")) continue;
      if (contains(kGroups, name) || contains(kTyped, name)) {
        return error(Code::kUnsupported, "`{}` beside `{}` at {} is not enforced", name, group,
                     place);
      }
    }
    const ordered_json& value = s[group];
    if (is_value) return values(s, group, place);
    if (group == "$ref") return reference(value, place, depth);
    if (!value.is_array() || value.empty())
      return error(Code::kInvalidArgument, "`{}` at {} must be an array of schemas", group, place);
    if (group == "allOf" && value.size() != 1)
      return error(Code::kUnsupported, "`allOf` of several at {} is not enforced", place);
    for (size_t i = 0; i < value.size(); ++i) {
      RETURN_IF_ERROR(schema(value[i], fmt::format("{}/{}/{}", place, group, i), depth + 1));
    }
    return {};
  }

  // The library takes the values and passes over the type.
  base::Result<void> values(const ordered_json& s, std::string_view group,
                            const std::string& place) {
    if (!s.contains("type")) return {};
    const auto types = type_names(s);
    const auto fits = [&](const ordered_json& value) {
      return std::ranges::any_of(types, [&](const auto& type) { return has_type(value, type); });
    };
    const bool all = group == "const"
                         ? fits(s["const"])
                         : s["enum"].is_array() && std::ranges::all_of(s["enum"], fits);
    if (all) return {};
    return error(Code::kUnsupported, "`{}` at {} has a value that is not of its `type`", group,
                 place);
  }

  static std::vector<std::string> type_names(const ordered_json& s) {
    std::vector<std::string> names;
    const ordered_json& type = s["type"];
    if (type.is_string()) names.push_back(type);
    for (const ordered_json& one : type.is_array() ? type : ordered_json::array()) {
      if (one.is_string()) names.push_back(one);
    }
    return names;
  }

  base::Result<void> reference(const ordered_json& value, const std::string& place, int depth) {
    if (!value.is_string())
      return error(Code::kInvalidArgument, "`$ref` at {} must be a string", place);
    const std::string uri = value;
    if (!seen_.insert(uri).second) return {};
    if (uri == "#") return {};
    if (!uri.starts_with("#/") || uri.find_first_of("~%") != std::string::npos) {
      return error(Code::kUnsupported,
                   "`$ref` at {} must be \"#\" or start with \"#/\", without escapes", place);
    }
    const ordered_json* target = &root_;
    for (size_t begin = 2; begin <= uri.size();) {
      const size_t end = std::min(uri.find('/', begin), uri.size());
      const std::string part = uri.substr(begin, end - begin);
      if (!target->is_object() || !target->contains(part))
        return error(Code::kInvalidArgument, "`$ref` at {} leads nowhere", place);
      target = &(*target)[part];
      begin = end + 1;
    }
    return schema(*target, place + "/$ref", depth + 1);
  }

  base::Result<void> typed(const ordered_json& s, const std::string& place, int depth) {
    RETURN_IF_ERROR(counts(s, place));
    std::vector<std::string> types;
    if (s.contains("type")) {
      types = type_names(s);
    } else if (!first_of(s, kMakesObject).empty()) {
      types = {"object"};
    } else if (!first_of(s, kMakesArray).empty()) {
      types = {"array"};
    } else if (const auto name = first_of(s, kTyped); !name.empty()) {
      return error(Code::kUnsupported, "`{}` without `type` at {} is not enforced", name, place);
    }
    for (const std::string& type : types) {
      if (type == "object") RETURN_IF_ERROR(object(s, place, depth));
      if (type == "array") RETURN_IF_ERROR(array(s, place, depth));
      if (type == "string" && s.contains("pattern") && s.contains("format"))
        return error(Code::kUnsupported, "`pattern` beside `format` at {} is not enforced", place);
    }
    if (s.contains("pattern") && s["pattern"].is_string()) {
      const auto checked = check_escapes(s["pattern"].get_ref<const std::string&>());
      if (!checked.ok())
        return error(Code::kUnsupported, "`pattern` at {}: {}", place, checked.error().message);
    }
    // Without a type of their own, what belongs to other types would be passed over.
    if (!s.contains("type")) {
      for (const auto& [name, value] : s.items()) {
        const bool is_own =
            types.empty() ||
            contains(types[0] == "object" ? Names(kOfObjects) : Names(kOfArrays), name);
        if (contains(kTyped, name) && !is_own) {
          return error(Code::kUnsupported, "`{}` without `type` at {} is not enforced", name,
                       place);
        }
      }
    }
    return {};
  }

  base::Result<void> counts(const ordered_json& s, const std::string& place) {
    for (const std::string_view name : kCounts) {
      if (!s.contains(name)) continue;
      const ordered_json& value = s[name];
      if (!value.is_number_integer() || value.get<int64_t>() < 0)
        return error(Code::kInvalidArgument, "`{}` at {} must be a whole number from 0 on", name,
                     place);
      if (value.get<int64_t>() > kCountMax)
        return error(Code::kTooLarge, "`{}` at {} is more than {}", name, place, kCountMax);
    }
    return {};
  }

  base::Result<void> array(const ordered_json& s, const std::string& place, int depth) {
    if (s.contains("uniqueItems") && s["uniqueItems"] != false)
      return refused("uniqueItems", place);
    if (s.contains("items") && s["items"].is_array()) return refused("items` as an array", place);
    if (s.contains("items")) {
      RETURN_IF_ERROR(schema(s["items"], place + "/items", depth + 1));
    } else if (s.contains("unevaluatedItems")) {
      RETURN_IF_ERROR(schema(s["unevaluatedItems"], place + "/unevaluatedItems", depth + 1));
    }
    if (!s.contains("prefixItems")) return {};
    int index = 0;
    for (const ordered_json& item : s["prefixItems"]) {
      RETURN_IF_ERROR(schema(item, fmt::format("{}/prefixItems/{}", place, index++), depth + 1));
    }
    return {};
  }

  base::Result<void> object(const ordered_json& s, const std::string& place, int depth) {
    // The library lets a key that matches a pattern also come as a named or a further property,
    // with the wrong value.
    const bool is_closed = s.contains("additionalProperties") && s["additionalProperties"] == false;
    for (const std::string_view name : {"patternProperties", "propertyNames"}) {
      if (!s.contains(name)) continue;
      if (!s[name].is_object())
        return error(Code::kInvalidArgument, "`{}` at {} must be an object", name, place);
      if (s.contains("properties") || s.contains("required"))
        return error(Code::kUnsupported, "`{}` beside `properties` at {} is not enforced", name,
                     place);
      if (name == "patternProperties" &&
          (!is_closed || s[name].size() != 1 || s.contains("propertyNames"))) {
        return error(Code::kUnsupported,
                     "`patternProperties` at {} must have one pattern, and `additionalProperties` "
                     "false beside it, to be enforced",
                     place);
      }
    }
    for (const std::string_view name : {"properties", "patternProperties"}) {
      if (!s.contains(name)) continue;
      if (!s[name].is_object())
        return error(Code::kInvalidArgument, "`{}` at {} must be an object", name, place);
      for (const auto& [key, value] : s[name].items()) {
        if (name == "patternProperties") RETURN_IF_ERROR(check_escapes(key));
        ordered_json::json_pointer shown;
        shown.push_back(key.size() <= kNameBytesShown ? key : "(a long name)");
        RETURN_IF_ERROR(
            schema(value, fmt::format("{}/{}{}", place, name, shown.to_string()), depth + 1));
      }
    }
    for (const std::string_view name :
         {"additionalProperties", "unevaluatedProperties", "propertyNames"}) {
      if (!s.contains(name)) continue;
      RETURN_IF_ERROR(schema(s[name], fmt::format("{}/{}", place, name), depth + 1));
    }
    return required(s, place);
  }

  static base::Result<void> required(const ordered_json& s, const std::string& place) {
    if (!s.contains("required")) return {};
    if (!s["required"].is_array())
      return error(Code::kInvalidArgument, "`required` at {} must be an array", place);
    for (const ordered_json& name : s["required"]) {
      if (!name.is_string())
        return error(Code::kInvalidArgument, "`required` at {} must hold strings", place);
      if (!s.contains("properties") || !s["properties"].contains(name.get<std::string>()))
        return error(Code::kUnsupported,
                     "`required` at {} names a property that `properties` does not", place);
    }
    return {};
  }

  const ordered_json& root_;
  std::set<std::string> seen_;  // references
  int nodes_ = 0;
};

constexpr bool must_escape(char c) {
  return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
}

// `c` behind a backslash: \d, \w and what stands for itself, such as `\.`. The others stand for
// control characters, for more than is plain (\D, \S, \W, \s), or are spelled out (\x, \u).
constexpr bool is_plain_escape(char c) {
  const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  if (is_letter) return c == 'd' || c == 'w';
  return !must_escape(c) && (c < '0' || c > '9');
}

// From `first` to `last`, where bytes from 0x80 on are parts of characters behind all of ASCII.
constexpr bool has_escaped(unsigned char first, unsigned char last) {
  return first < 0x20 || (first <= '"' && '"' <= last) || (first <= '\\' && '\\' <= last);
}

}  // namespace

int json_depth(std::string_view json) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

base::Result<void> check_escapes(std::string_view text) {
  constexpr uint32_t kLastCharacter = 0x10ffff;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != '\\') continue;
    const size_t begin = ++i;
    if (text[begin] != 'x' && text[begin] != 'U') continue;
    size_t digits = 0;
    uint32_t value = 0;
    while (begin + 1 + digits < text.size() && digits < 8 &&
           std::isxdigit(static_cast<unsigned char>(text[begin + 1 + digits])) != 0) {
      const char c = text[begin + 1 + digits++];
      value = value << 4 | static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (text[begin] == 'x' && digits > 2) {
      return error(Code::kUnsupported,
                   "`\\x` takes two digits, found more at byte {}; `\\u` takes four", begin - 1);
    }
    if (value > kLastCharacter)
      return error(Code::kUnsupported, "the escape at byte {} names no character", begin - 1);
  }
  return {};
}

bool is_plain_in_json(std::string_view expression) {
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (must_escape(c) && c != '\\') return false;
    if (c == '\\') {
      if (++i == expression.size() || !is_plain_escape(expression[i])) return false;
    } else if (in_class) {
      if (c == ']') in_class = false;
    } else if (c == '.') {
      return false;
    } else if (c == '[') {
      if (expression.substr(i + 1).starts_with('^')) return false;
      in_class = true;
      continue;
    }
    // A range goes on behind `c`, which may have been escaped, and behind a character's last byte.
    const std::string_view rest = expression.substr(i + 1);
    const bool is_range = in_class && rest.size() >= 2 && rest[0] == '-' && rest[1] != ']';
    if (!is_range) continue;
    const char last = rest[1] == '\\' && rest.size() >= 3 ? rest[2] : rest[1];
    if (has_escaped(static_cast<unsigned char>(expression[i]), static_cast<unsigned char>(last)))
      return false;
  }
  return true;
}

base::Result<void> check_schema(const ordered_json& schema) {
  return Walk(schema).schema(schema, "#", 1);
}

}  // namespace grammar
