#include "api/parse_constraint.h"

namespace api {
namespace {

using grammar::Spec;

// One of the two fields may ask, and for one thing.
Failure set_constraint(GenerateRequest& request, std::string_view field, Spec spec) {
  if (request.constraint) {
    return invalid(field, "The output can be constrained in one way only; `{}` is one too many.",
                   field);
  }
  request.constraint = {.spec = std::move(spec), .field = std::string(field)};
  return std::nullopt;
}

ApiError not_supported(std::string_view name) {
  return {Problem::kUnsupportedParameter,
          fmt::format("`{}` of this kind is not supported by this server.", name),
          std::string(name)};
}

std::string text_of(Value value) {
  return simdjson::minify(value);
}

Failure read_text(Value value, std::string_view name, Spec::Kind kind, Spec& spec) {
  spec.kind = kind;
  return read_string(value, name, spec.text);
}

// A schema as an object or, as vLLM takes it too, as JSON in a string.
Failure read_json(Value value, std::string_view name, Spec& spec) {
  spec.kind = Spec::Kind::kJsonSchema;
  if (value.is_string()) return read_string(value, name, spec.text);
  if (!value.is_object() && !value.is_bool())
    return invalid(name, "`{}` must be a JSON schema, got {}.", name, type_name(value));
  spec.text = text_of(value);
  return std::nullopt;
}

Failure read_choices(Value value, Spec& spec) {
  constexpr std::string_view kName = "structured_outputs.choice";
  spec.kind = Spec::Kind::kChoice;
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS)
    return invalid(kName, "`{}` must be an array of strings, got {}.", kName, type_name(value));
  for (const Value item : array) {
    if (spec.choices.size() == grammar::kChoicesMax)
      return invalid(kName, "`{}` takes at most {} strings.", kName, grammar::kChoicesMax);
    if (Failure failure = read_string(item, kName, spec.choices.emplace_back())) return failure;
  }
  return std::nullopt;
}

// `schema` and `strict` of the object at `where`, a part of `field`.
Failure read_schema_of(Value value, const std::string& where, std::string_view field, Spec& spec) {
  Value schema;
  if (!value.is_object() || value.at_key("schema").get(schema) != simdjson::SUCCESS ||
      schema.is_null()) {
    return invalid(field, "`{}.schema` is required.", where);
  }
  if (Failure failure = read_json(schema, where + ".schema", spec)) return failure;
  Value strict;
  if (value.at_key("strict").get(strict) != simdjson::SUCCESS || strict.is_null())
    return std::nullopt;
  return read_bool(strict, where + ".strict", spec.closed);
}

bool is_option(std::string_view key) {
  return key == "disable_any_whitespace" || key == "disable_additional_properties" ||
         key == "disable_fallback" || key == "whitespace_pattern";
}

Failure read_option(std::string_view key, Value value, Spec& spec) {
  const std::string name = fmt::format("structured_outputs.{}", key);
  if (key == "whitespace_pattern") return not_supported(name);
  bool set = false;
  if (Failure failure = read_bool(value, name, set)) return failure;
  if (key == "disable_any_whitespace") spec.any_whitespace = !set;
  if (key == "disable_additional_properties" && set) spec.closed = true;
  return std::nullopt;
}

// Reads one way to constrain into `spec`; `known` says whether it is one, and asks for something.
Failure read_way(std::string_view key, Value value, Spec& spec, bool& known) {
  const std::string name = fmt::format("structured_outputs.{}", key);
  known = true;
  if (key == "json") return read_json(value, name, spec);
  if (key == "regex") return read_text(value, name, Spec::Kind::kRegex, spec);
  if (key == "grammar") return read_text(value, name, Spec::Kind::kEbnf, spec);
  if (key == "choice") return read_choices(value, spec);
  if (key == "structural_tag") return not_supported(name);
  known = false;
  if (key != "json_object") return invalid(name, "`{}` is not known.", name.substr(0, 80));
  Failure failure = read_bool(value, name, known);
  spec.kind = Spec::Kind::kJsonObject;
  return failure;
}

}  // namespace

Failure read_response_format(Value value, GenerateRequest& request) {
  std::string_view type;
  if (!value.is_object() || value.at_key("type").get(type) != simdjson::SUCCESS)
    return invalid("response_format", "`response_format` must be an object with a string `type`.");
  if (type == "text") return std::nullopt;
  Spec spec;
  if (type == "json_object") return set_constraint(request, "response_format", std::move(spec));
  if (type == "json_schema") {
    Value schema;
    if (value.at_key("json_schema").get(schema) != simdjson::SUCCESS)
      return invalid("response_format", "`response_format.json_schema` is required.");
    if (Failure failure =
            read_schema_of(schema, "response_format.json_schema", "response_format", spec))
      return failure;
    return set_constraint(request, "response_format", std::move(spec));
  }
  if (type == "structural_tag") return not_supported("response_format");
  return invalid("response_format",
                 "`response_format.type` must be text, json_object or json_schema, "
                 "got {}.",
                 clip(type));
}

Failure read_text_format(Value value, std::string_view field, bool only_schema,
                         GenerateRequest& request) {
  std::string_view type;
  if (!value.is_object() || value.at_key("type").get(type) != simdjson::SUCCESS)
    return invalid(field, "`{}` must be an object with a string `type`.", field);
  Spec spec;
  if (type == "json_schema") {
    if (Failure failure = read_schema_of(value, std::string(field), field, spec)) return failure;
    return set_constraint(request, field, std::move(spec));
  }
  if (!only_schema && type == "text") return std::nullopt;
  if (!only_schema && type == "json_object") return set_constraint(request, field, std::move(spec));
  return invalid(field, "`{}.type` must be {}, got {}.", field,
                 only_schema ? "json_schema" : "text, json_object or json_schema", clip(type));
}

Failure read_structured_outputs(Value value, GenerateRequest& request) {
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) {
    return invalid("structured_outputs", "`structured_outputs` must be an object, got {}.",
                   type_name(value));
  }
  Spec spec;
  int ways = 0;
  for (const auto& [key, item] : object) {
    if (item.is_null()) continue;
    bool known = false;
    if (Failure failure =
            is_option(key) ? read_option(key, item, spec) : read_way(key, item, spec, known))
      return failure;
    ways += known;
  }
  if (ways > 1)
    return invalid("structured_outputs", "`structured_outputs` takes one constraint, got {}.",
                   ways);
  if (ways == 0) return std::nullopt;
  return set_constraint(request, "structured_outputs", std::move(spec));
}

}  // namespace api
