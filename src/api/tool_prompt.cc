#include "api/tool_prompt.h"

#include <string>
#include <utility>

namespace api {
namespace {

using nlohmann::ordered_json;

constexpr const char* kCalled = "probe_key";

constexpr const char* kHead =
    "You can call functions. Each line between the <tools> tags describes one, with a JSON Schema "
    "of its parameters:\n<tools>\n";
constexpr const char* kTail =
    "</tools>\nTo call one, write its name and arguments as JSON between tags of their own, one "
    "pair of tags for each call:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {...}}\n"
    "</tool_call>\nThe results come between <tool_response> tags.";

bool shows(const text::ChatTemplate& chat_template, const ordered_json& context,
           std::string_view text) {
  const auto rendered = chat_template.render(context, 0);
  return rendered.ok() && rendered->find(text) != std::string::npos;
}

ordered_json message(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

ordered_json probe(ordered_json messages, ordered_json tools) {
  return {{"messages", std::move(messages)}, {"tools", std::move(tools)}, {"documents", nullptr},
          {"add_generation_prompt", true},   {"bos_token", "<s>"},        {"eos_token", "</s>"}};
}

// As Python's json.dumps writes it, which is what templates that know tools do.
void append_json(std::string& out, const ordered_json& value) {
  if (value.is_object() || value.is_array()) {
    out += value.is_object() ? '{' : '[';
    bool first = true;
    for (const auto& [key, item] : value.items()) {
      if (!std::exchange(first, false)) out += ", ";
      if (value.is_object()) out += ordered_json(key).dump() + ": ";
      append_json(out, item);
    }
    out += value.is_object() ? '}' : ']';
    return;
  }
  out += value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string text_of(const ordered_json& content) {
  return content.is_string() ? content.get<std::string>() : std::string();
}

void write_calls(ordered_json& one) {
  std::string content = text_of(one["content"]);
  for (const ordered_json& call : one["tool_calls"]) {
    const ordered_json& function = call["function"];
    if (!content.empty()) content += '\n';
    content += "<tool_call>\n{\"name\": " + function["name"].dump() + ", \"arguments\": ";
    append_json(content, function["arguments"]);
    content += "}\n</tool_call>";
  }
  one["content"] = std::move(content);
  one.erase("tool_calls");
}

void write_results(ordered_json& messages) {
  ordered_json out = ordered_json::array();
  bool behind_result = false;
  for (ordered_json& one : messages) {
    const bool result = one["role"] == "tool";
    if (result) {
      std::string text = "<tool_response>\n" + text_of(one["content"]) + "\n</tool_response>";
      if (behind_result) {
        out.back()["content"] = out.back()["content"].get<std::string>() + "\n" + text;
      } else {
        out.push_back(message("user", std::move(text)));
      }
    } else {
      out.push_back(std::move(one));
    }
    behind_result = result;
  }
  messages = std::move(out);
}

void write_tools(ordered_json& messages, const ordered_json& tools) {
  std::string text = kHead;
  for (const ordered_json& tool : tools) {
    append_json(text, tool);
    text += '\n';
  }
  text += kTail;
  if (!messages.empty() && messages[0]["role"] == "system") {
    messages[0]["content"] = text_of(messages[0]["content"]) + "\n\n" + text;
  } else {
    ordered_json system = message("system", std::move(text));
    messages.insert(messages.begin(), std::move(system));
  }
}

}  // namespace

TemplateTraits probe_template(const text::ChatTemplate& chat_template) {
  const ordered_json tools = ordered_json::parse(
      R"([{"type":"function","function":{"name":"probe_tool","description":"d",
          "parameters":{"type":"object","properties":{"k":{"type":"string","description":"d"}},
          "required":["k"]}}}])");
  ordered_json call = ordered_json::parse(
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"abcdefghi","type":"function",
          "function":{"name":"probe_tool","arguments":{"probe_key":"v"}}}]})");
  ordered_json result = message("tool", "probe_result");
  result["tool_call_id"] = "abcdefghi";
  result["name"] = "probe_tool";
  const ordered_json user = message("user", "q");
  const auto chat = [&] { return probe(ordered_json::array({user, call, result}), tools); };
  TemplateTraits traits;
  traits.shows_tools =
      shows(chat_template, probe(ordered_json::array({user}), tools), "probe_tool");
  if (!traits.shows_tools) return traits;
  traits.shows_calls = shows(chat_template, chat(), kCalled);
  if (!traits.shows_calls) {
    call["content"] = "";
    traits.shows_calls = traits.calls_need_content = shows(chat_template, chat(), kCalled);
  }
  traits.shows_results = traits.shows_calls && shows(chat_template, chat(), "probe_result");
  return traits;
}

void write_tools_as_text(const TemplateTraits& traits, ordered_json& messages,
                         ordered_json& tools) {
  for (ordered_json& one : messages) {
    if (!traits.shows_calls && one.contains("tool_calls")) write_calls(one);
    if (traits.calls_need_content && one["content"].is_null()) one["content"] = "";
  }
  if (!traits.shows_results) write_results(messages);
  if (traits.shows_tools || tools.is_null()) return;
  write_tools(messages, tools);
  tools = nullptr;
}

}  // namespace api
