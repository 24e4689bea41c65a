#include "text/tool_grammar.h"

#include <fmt/format.h>

#include "base/check.h"

namespace text {

using nlohmann::ordered_json;

ToolCallGrammar tool_call_grammar(CallFormat format, const ordered_json& tools,
                                  std::string_view only, bool parallel) {
  ToolCallGrammar grammar;
  grammar.single = !parallel;
  if (format == CallFormat::kMistral) {
    grammar.before = "[TOOL_CALLS] [";
    grammar.separator = ", ";
    grammar.after.assign(1, ']');
  } else {
    grammar.separator = format == CallFormat::kLlama3Json ? "; " : "\n";
  }
  for (const ordered_json& tool : tools) {
    const ordered_json& function = tool["function"];
    const auto& name = function["name"].get_ref<const std::string&>();
    if (!only.empty() && name != only) continue;
    CallGrammar& call = grammar.calls.emplace_back();
    const auto schema = function.find("parameters");
    if (schema != function.end() && schema->is_object() && !schema->empty()) {
      call.schema = *schema;
    } else {
      call.schema = {{"type", "object"}, {"properties", ordered_json::object()}};
    }
    const std::string quoted =
        ordered_json(name).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    switch (format) {
      case CallFormat::kNone:
        CHECK(format != CallFormat::kNone);
        break;
      case CallFormat::kHermes:
        call.begin = fmt::format("<tool_call>\n{{\"name\": {}, \"arguments\": ", quoted);
        call.end = "}\n</tool_call>";
        break;
      case CallFormat::kQwen3Coder:
        grammar.arguments = ToolCallGrammar::Arguments::kQwenXml;
        call.begin = fmt::format("<tool_call>\n<function={}>\n", name);
        call.end = "\n</function>\n</tool_call>";
        break;
      case CallFormat::kLlama3Json:
        call.begin = fmt::format("{{\"name\": {}, \"parameters\": ", quoted);
        call.end.assign(1, '}');
        break;
      case CallFormat::kMistral:
        call.begin = fmt::format("{{\"name\": {}, \"arguments\": ", quoted);
        call.end.assign(1, '}');
        break;
    }
  }
  return grammar;
}

std::string structural_tag(const ToolCallGrammar& grammar) {
  ordered_json tags = ordered_json::array();
  for (const CallGrammar& call : grammar.calls) {
    ordered_json content;
    content["type"] = "json_schema";
    content["json_schema"] = call.schema;
    if (grammar.arguments == ToolCallGrammar::Arguments::kQwenXml) content["style"] = "qwen_xml";
    ordered_json& tag = tags.emplace_back();
    tag["type"] = "tag";
    tag["begin"] = call.begin;
    tag["content"] = std::move(content);
    tag["end"] = call.end;
  }
  ordered_json format;
  format["type"] = "tags_with_separator";
  format["tags"] = std::move(tags);
  format["separator"] = grammar.separator;
  format["at_least_one"] = true;
  format["stop_after_first"] = grammar.single;
  if (!grammar.before.empty()) {
    ordered_json sequence;
    sequence["type"] = "sequence";
    for (const std::string* text : {&grammar.before, &grammar.after}) {
      if (text == &grammar.after) sequence["elements"].push_back(std::move(format));
      ordered_json fixed;
      fixed["type"] = "const_string";
      fixed["value"] = *text;
      sequence["elements"].push_back(std::move(fixed));
    }
    format = std::move(sequence);
  }
  ordered_json whole;
  whole["type"] = "structural_tag";
  whole["format"] = std::move(format);
  return whole.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace text
