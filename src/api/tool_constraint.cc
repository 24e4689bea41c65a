#include "api/tool_constraint.h"

#include <nlohmann/json.hpp>

#include "api/generate_request.h"
#include "grammar/schema_check.h"

namespace api {
namespace {

using nlohmann::ordered_json;

ordered_json fixed(const std::string& text) {
  return {{"type", "const_string"}, {"value", text}};
}

using Arguments = text::ToolCallGrammar::Arguments;

ordered_json any_object() {
  return {{"type", "object"}, {"additionalProperties", true}};
}

ordered_json content_of(const ordered_json& schema, Arguments arguments) {
  return {{"type", arguments == Arguments::kJson ? "json_schema" : "qwen_xml_parameter"},
          {"json_schema", schema},
          {"max_whitespace_cnt", grammar::kWhitespaceMax}};
}

// What follows the schema; or, of a tool that is not strict, what is an object at all.
ordered_json tag_of(const text::CallGrammar& call, Arguments arguments, bool strict) {
  return {{"begin", call.begin},
          {"content", content_of(strict ? call.schema : any_object(), arguments)},
          {"end", call.end}};
}

// Calls beside each other. `all_strict`: whether the tools say so or not.
ordered_json list_of(const text::ToolCallGrammar& calls, bool all_strict) {
  ordered_json tags = ordered_json::array();
  for (const text::CallGrammar& call : calls.calls)
    tags.push_back(tag_of(call, calls.arguments, all_strict || call.strict));
  return {{"type", "tags_with_separator"},
          {"tags", std::move(tags)},
          {"separator", calls.separator},
          {"at_least_one", true},
          {"stop_after_first", calls.single}};
}

ordered_json sequence_of(const text::ToolCallGrammar& calls, bool all_strict) {
  ordered_json parts = ordered_json::array();
  if (!calls.before.empty()) parts.push_back(fixed(calls.before));
  parts.push_back(list_of(calls, all_strict));
  if (!calls.after.empty()) parts.push_back(fixed(calls.after));
  return {{"type", "sequence"}, {"elements", std::move(parts)}};
}

grammar::Spec spec_of(ordered_json format, grammar::Spec::Json json) {
  const ordered_json tag = {{"type", "structural_tag"}, {"format", std::move(format)}};
  return {.kind = grammar::Spec::Kind::kStructuralTag, .text = tag.dump(), .json = json};
}

}  // namespace

grammar::Spec tool_call_spec(const text::ToolCallGrammar& calls) {
  return spec_of(sequence_of(calls, /*all_strict=*/true), calls.arguments == Arguments::kJson
                                                              ? grammar::Spec::Json::kAll
                                                              : grammar::Spec::Json::kNone);
}

std::optional<grammar::Spec> call_or_json_spec(const text::ToolCallGrammar& calls,
                                               const grammar::Spec& json) {
  ordered_json schema = any_object();
  if (json.kind == grammar::Spec::Kind::kJsonSchema) {
    if (json.text.size() > grammar::kTextBytesMax ||
        grammar::json_depth(json.text) > static_cast<int>(kJsonDepthMax))
      return std::nullopt;
    schema = ordered_json::parse(json.text, nullptr, /*allow_exceptions=*/false);
    if (!schema.is_object()) return std::nullopt;
  }
  ordered_json ways = ordered_json::array();
  ways.push_back(content_of(schema, Arguments::kJson));
  ways.push_back(sequence_of(calls, /*all_strict=*/false));
  return spec_of({{"type", "or"}, {"elements", std::move(ways)}}, grammar::Spec::Json::kAll);
}

grammar::Spec free_call_spec(const text::FreeCallGrammar& calls) {
  ordered_json tags = ordered_json::array();
  for (const text::CallGrammar& call : calls.calls)
    tags.push_back(tag_of(call, calls.arguments, call.strict));
  if (calls.list) {
    tags.push_back({{"begin", calls.list->before},
                    {"content", list_of(*calls.list, /*all_strict=*/false)},
                    {"end", calls.list->after}});
  }
  return spec_of({{"type", "triggered_tags"},
                  {"triggers", {calls.marker}},
                  {"tags", std::move(tags)},
                  {"excludes", calls.excluded}},
                 calls.arguments == Arguments::kJson ? grammar::Spec::Json::kInTags
                                                     : grammar::Spec::Json::kNone);
}

}  // namespace api
