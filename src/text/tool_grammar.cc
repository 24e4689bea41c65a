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

}  // namespace text
