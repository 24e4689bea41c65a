#include "api/tool_constraint.h"

#include <nlohmann/json.hpp>

namespace api {
namespace {

using nlohmann::ordered_json;

ordered_json fixed(const std::string& text) {
  return {{"type", "const_string"}, {"value", text}};
}

ordered_json tag_of(const text::CallGrammar& call, const char* arguments) {
  return {{"begin", call.begin},
          {"content",
           {{"type", arguments},
            {"json_schema", call.schema},
            {"max_whitespace_cnt", grammar::kWhitespaceMax}}},
          {"end", call.end}};
}

}  // namespace

grammar::Spec tool_call_spec(const text::ToolCallGrammar& calls) {
  const bool is_json = calls.arguments == text::ToolCallGrammar::Arguments::kJson;
  ordered_json tags = ordered_json::array();
  for (const text::CallGrammar& call : calls.calls)
    tags.push_back(tag_of(call, is_json ? "json_schema" : "qwen_xml_parameter"));
  ordered_json parts = ordered_json::array();
  if (!calls.before.empty()) parts.push_back(fixed(calls.before));
  parts.push_back({{"type", "tags_with_separator"},
                   {"tags", std::move(tags)},
                   {"separator", calls.separator},
                   {"at_least_one", true},
                   {"stop_after_first", calls.single}});
  if (!calls.after.empty()) parts.push_back(fixed(calls.after));
  const ordered_json format = {{"type", "structural_tag"},
                               {"format", {{"type", "sequence"}, {"elements", std::move(parts)}}}};
  return {.kind = grammar::Spec::Kind::kStructuralTag, .text = format.dump()};
}

}  // namespace api
