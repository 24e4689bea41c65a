// Goal: templates that know tools get them untouched, others get text that says the same. Method:
// small templates of each kind, rendered.
#include "api/tool_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace api {
namespace {

using nlohmann::ordered_json;
using testing::EndsWith;
using testing::HasSubstr;

text::ChatTemplate parse(std::string_view source) {
  return text::ChatTemplate::parse(source).value();
}

constexpr const char* kKnows =
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content "
    "}}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}";

ordered_json chat() {
  return ordered_json::parse(R"([{"role":"user","content":"q"},
    {"role":"assistant","content":null,"tool_calls":[
      {"id":"1","type":"function","function":{"name":"f","arguments":{"k":[1,{"é":null}]}}},
      {"id":"2","type":"function","function":{"name":"g","arguments":"{\"cut"}}]},
    {"role":"tool","tool_call_id":"1","content":"one"},{"role":"tool","tool_call_id":"2","content":"two"}])");
}

TEST(ToolPrompt, ATemplateThatKnowsTools) {
  const TemplateTraits traits = probe_template(parse(kKnows));
  EXPECT_TRUE(traits.shows_tools && traits.shows_calls && traits.shows_results);
  EXPECT_FALSE(traits.calls_need_content);
  ordered_json messages = chat(), tools = ordered_json::parse(R"([{"function":{"name":"f"}}])");
  const ordered_json before = messages, tools_before = tools;
  write_tools_as_text(traits, messages, tools);
  EXPECT_EQ(messages, before);
  EXPECT_EQ(tools, tools_before);
}

TEST(ToolPrompt, ATemplateThatNeedsContent) {
  std::string source = kKnows;
  source.replace(source.find("m.content }}"), 12, "m.content + '' }}");
  const TemplateTraits traits = probe_template(parse(source));
  EXPECT_TRUE(traits.shows_calls && traits.calls_need_content);
  ordered_json messages = chat(), tools;
  write_tools_as_text(traits, messages, tools);
  EXPECT_EQ(messages[1]["content"], "");
  EXPECT_TRUE(messages[1].contains("tool_calls"));
}

TEST(ToolPrompt, ATemplateWithoutTools) {
  const text::ChatTemplate chat_template = parse(text::kDefaultChatTemplate);
  const TemplateTraits traits = probe_template(chat_template);
  EXPECT_FALSE(traits.shows_tools || traits.shows_calls || traits.shows_results);
  ordered_json messages = chat();
  ordered_json tools = ordered_json::parse(R"([{"type":"function","function":{"name":"f"}}])");
  write_tools_as_text(traits, messages, tools);
  EXPECT_TRUE(tools.is_null());
  const std::string text =
      chat_template.render({{"messages", messages}, {"add_generation_prompt", true}}, 0).value();
  EXPECT_THAT(text, HasSubstr("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n"
                              "</tools>\n"));
  EXPECT_THAT(
      text, EndsWith("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
                     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"k\": [1, {\"é\": null}]}}\n"
                     "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": \"{\\\"cut\"}\n"
                     "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\none\n"
                     "</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
                     "<|im_start|>assistant\n"));
}

TEST(ToolPrompt, ATemplateThatShowsCallsOnly) {
  const TemplateTraits traits = probe_template(
      parse("{% for m in messages %}{{ m.content or m.tool_calls | tojson }}{% endfor %}"));
  EXPECT_FALSE(traits.shows_tools || traits.shows_calls || traits.shows_results);
}

TEST(ToolPrompt, ToolsGoBehindTheSystemMessage) {
  ordered_json messages = ordered_json::parse(R"([{"role":"system","content":"Be brief."}])");
  ordered_json tools = ordered_json::parse(R"([{"function":{"name":"f"}}])");
  write_tools_as_text({}, messages, tools);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(messages[0]["content"].get<std::string>(),
              testing::StartsWith("Be brief.\n\nYou can"));
}

}  // namespace
}  // namespace api
