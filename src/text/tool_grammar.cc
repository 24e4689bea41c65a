#include "text/tool_grammar.h"

#include <fmt/format.h>

#include "base/check.h"

namespace text {
namespace {

using nlohmann::ordered_json;

std::string quoted(const std::string& name) {
  return ordered_json(name).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

const std::string& tool_name(const ordered_json& tool) {
  return tool["function"]["name"].get_ref<const std::string&>();
}

// A call of `tool` in the format, as it stands by itself (mistral: in the array).
CallGrammar call_of(CallFormat format, const ordered_json& tool) {
  const ordered_json& function = tool["function"];
  CallGrammar call;
  const auto schema = function.find("parameters");
  if (schema != function.end() && schema->is_object() && !schema->empty()) {
    call.schema = *schema;
  } else {
    call.schema = {{"type", "object"}, {"properties", ordered_json::object()}};
  }
  const auto strict = function.find("strict");
  call.strict = strict != function.end() && *strict == true;
  switch (format) {
    case CallFormat::kNone:
      CHECK(format != CallFormat::kNone);
      break;
    case CallFormat::kHermes:
      call.begin =
          fmt::format("<tool_call>\n{{\"name\": {}, \"arguments\": ", quoted(tool_name(tool)));
      call.end = "}\n</tool_call>";
      break;
    case CallFormat::kQwen3Coder:
      call.begin = fmt::format("<tool_call>\n<function={}>\n", tool_name(tool));
      call.end = "\n</function>\n</tool_call>";
      break;
    case CallFormat::kLlama3Json:
      call.begin = fmt::format("{{\"name\": {}, \"parameters\": ", quoted(tool_name(tool)));
      call.end.assign(1, '}');
      break;
    case CallFormat::kMistral:
      call.begin = fmt::format("{{\"name\": {}, \"arguments\": ", quoted(tool_name(tool)));
      call.end.assign(1, '}');
      break;
  }
  return call;
}

ToolCallGrammar::Arguments arguments_of(CallFormat format) {
  return format == CallFormat::kQwen3Coder ? ToolCallGrammar::Arguments::kQwenXml
                                           : ToolCallGrammar::Arguments::kJson;
}

}  // namespace

ToolCallGrammar tool_call_grammar(CallFormat format, const ordered_json& tools,
                                  std::string_view only, bool parallel) {
  ToolCallGrammar grammar;
  grammar.arguments = arguments_of(format);
  grammar.single = !parallel;
  if (format == CallFormat::kMistral) {
    grammar.before = "[TOOL_CALLS] [";
    grammar.separator = ", ";
    grammar.after.assign(1, ']');
  } else {
    grammar.separator = format == CallFormat::kLlama3Json ? "; " : "\n";
  }
  for (const ordered_json& tool : tools) {
    if (only.empty() || tool_name(tool) == only) grammar.calls.push_back(call_of(format, tool));
  }
  return grammar;
}

std::optional<FreeCallGrammar> free_call_grammar(CallFormat format, const ordered_json& tools) {
  FreeCallGrammar grammar;
  grammar.arguments = arguments_of(format);
  switch (format) {
    case CallFormat::kNone:
    case CallFormat::kLlama3Json:
      return std::nullopt;
    case CallFormat::kHermes:
      grammar.marker = "<tool_call>";
      break;
    case CallFormat::kQwen3Coder:
      grammar.marker = "<tool_call>";
      grammar.excluded = {"<function="};
      break;
    case CallFormat::kMistral:
      grammar.marker = "[TOOL_CALLS]";
      grammar.list = tool_call_grammar(format, tools, "", /*parallel=*/true);
      break;
  }
  for (const ordered_json& tool : tools) {
    CallGrammar call = call_of(format, tool);
    if (format != CallFormat::kMistral) {
      grammar.calls.push_back(std::move(call));
      continue;
    }
    // As newer models write it; older ones write the list.
    const std::string& name = tool_name(tool);
    grammar.calls.push_back({"[TOOL_CALLS]" + name, call.schema, "", call.strict});
    grammar.calls.push_back(
        {"[TOOL_CALLS]" + name + "[ARGS]", std::move(call.schema), "", call.strict});
  }
  return grammar;
}

}  // namespace text
