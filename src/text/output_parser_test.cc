// Goal: a client gets the calls, reasoning and content that a model wrote, the same however the
// text was cut, and nothing is lost or comes twice when the text is damaged or ends early. Method:
// outputs as models write them and hostile variants, each read whole, split at every byte, a byte
// at a time, and cut off after every byte.
#include "text/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace text {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};

struct Outcome {
  std::string reasoning, content;
  std::vector<Call> calls;
  int32_t ended = 0;
  bool complete = true;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  out << "reasoning '" << o.reasoning << "' content '" << o.content << "'";
  for (const Call& call : o.calls) out << " call " << call.name << "(" << call.arguments << ")";
  return out << " ended " << o.ended << (o.complete ? " complete" : " incomplete");
}

// A client that puts deltas together, and checks their framing.
class Client {
 public:
  explicit Client(const OutputParserOptions& options) : parser_(options) {}
  void push(std::string_view text) {
    OutputPiece piece;
    parser_.push(text, piece);
    take(piece);
  }
  Outcome finish() {
    OutputPiece piece;
    parser_.finish(piece);
    take(piece);
    outcome_.ended = parser_.calls_ended();
    outcome_.complete = parser_.calls_complete();
    EXPECT_EQ(parser_.calls_begun(), static_cast<int32_t>(outcome_.calls.size()));
    return outcome_;
  }

 private:
  void take(const OutputPiece& piece) {
    outcome_.reasoning += piece.reasoning;
    outcome_.content += piece.content;
    for (const CallPiece& call : piece.calls) {
      const auto index = static_cast<size_t>(call.index);
      if (index == outcome_.calls.size()) {
        EXPECT_FALSE(call.name.empty());
        outcome_.calls.push_back({call.name, call.arguments});
        continue;
      }
      ASSERT_EQ(index + 1, outcome_.calls.size()) << "pieces belong to the last call";
      EXPECT_TRUE(call.name.empty()) << "the name comes once";
      outcome_.calls.back().arguments += call.arguments;
    }
  }
  OutputParser parser_;
  Outcome outcome_;
};

Outcome read_whole(const OutputParserOptions& options, std::string_view text) {
  Client client(options);
  client.push(text);
  return client.finish();
}

const Json& tools() {
  static const Json value = Json::parse(R"([
    {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
      "city":{"type":"string"},"days":{"type":"integer"},"metric":{"type":"boolean"},
      "limit":{"type":["integer","null"]},"either":{"anyOf":[{"type":"number"},{"type":"string"}]},
      "spots":{"type":"array"},"where":{"$ref":"#/$defs/place"}}}}},
    {"type":"function","function":{"name":"now"}}])");
  return value;
}

OutputParserOptions with(CallFormat calls, ReasoningFormat reasoning = ReasoningFormat::kNone) {
  return {.calls = calls, .reasoning = reasoning, .tools = &tools()};
}

Outcome expect_same_however_cut(const OutputParserOptions& options, std::string_view text) {
  const Outcome whole = read_whole(options, text);
  Client bytes(options);
  for (const char c : text) bytes.push({&c, 1});
  EXPECT_EQ(bytes.finish(), whole) << text;
  for (size_t at = 1; at < text.size(); ++at) {
    Client two(options);
    two.push(text.substr(0, at));
    two.push(text.substr(at));
    EXPECT_EQ(two.finish(), whole) << text << " split at " << at;
  }
  // Cut off early: what a client has been told only grows.
  for (size_t at = 0; at < text.size(); ++at) {
    const Outcome part = read_whole(options, text.substr(0, at));
    EXPECT_LE(part.calls.size(), whole.calls.size()) << text.substr(0, at);
    for (size_t i = 0; i < part.calls.size() && i < whole.calls.size(); ++i) {
      EXPECT_EQ(part.calls[i].name, whole.calls[i].name);
    }
    if (part.complete) {
      for (const Call& call : part.calls) EXPECT_TRUE(Json::accept(call.arguments)) << part;
    }
  }
  return whole;
}

Outcome hermes(std::string_view text) {
  return expect_same_however_cut(with(CallFormat::kHermes), text);
}

TEST(OutputParser, FormatsHaveNames) {
  for (const char* name : {"none", "hermes", "qwen3_coder", "llama3_json", "mistral"})
    EXPECT_EQ(name_of(*call_format(name)), name);
  for (const char* name : {"none", "deepseek_r1", "qwen3"})
    EXPECT_EQ(name_of(*reasoning_format(name)), name);
  EXPECT_FALSE(call_format("Hermes"));
  EXPECT_FALSE(reasoning_format(""));
}

TEST(HermesParser, OneCall) {
  const Outcome got = hermes(
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par\\\"is "
      "}\"}}\n</tool_call>");
  EXPECT_EQ(got, (Outcome{.calls = {{"get_weather", R"({"city": "Par\"is }"})"}}, .ended = 1}));
}

TEST(HermesParser, ContentThenTwoCalls) {
  const Outcome got = hermes(
      "Let me look.\n\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n"
      "<tool_call>\n{\"arguments\": {\"x\": [1, {\"y\": 2}]}, \"name\": \"b\"}\n</tool_call>\n");
  EXPECT_EQ(got, (Outcome{.content = "Let me look.",
                          .calls = {{"a", "{}"}, {"b", R"({"x": [1, {"y": 2}]})"}},
                          .ended = 2}));
}

TEST(HermesParser, ContentBehindCallsKeepsItsSpace) {
  const Outcome got =
      hermes("<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n Done <now>. ");
  EXPECT_EQ(got.content, "\n Done <now>. ");
  EXPECT_EQ(got.calls.size(), 1u);
}

TEST(HermesParser, WhatIsNoCallIsContent) {
  for (const char* text :
       {"plain", "<tool_call", "<tool_call>", "a <tool_call>\n hello </tool_call>", "<tool_call>{}",
        "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>", "<tool_call>[1]</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>", "<tool_call>{\"name\": \"a\"",
        "<tool_call>{\"arguments\": {\"a\": 1}, ", "<tool_call>{\"name\": \"a\" \"arguments\"",
        "<tool_call>{\"arguments\": ]", "<tool_call>{\"name\": \"a\", \"name\": \"b\"}",
        "</tool_call>", " \n ", ""}) {
    EXPECT_EQ(hermes(text), (Outcome{.content = text}));
  }
}

TEST(HermesParser, AFalseTagBeforeARealOne) {
  const Outcome got =
      hermes("<tool_call> <tool_call>{\"name\":\"a\",\"arguments\":{\"b\":null}}</tool_call>");
  EXPECT_EQ(got, (Outcome{.content = "<tool_call>", .calls = {{"a", "{\"b\":null}"}}, .ended = 1}));
}

TEST(HermesParser, EndsInsideACall) {
  const Outcome got =
      hermes("<tool_call>\n{\"name\": \"a\", \"arguments\": {\"text\": \"half a sen");
  EXPECT_EQ(got, (Outcome{.calls = {{"a", "{\"text\": \"half a sen"}}, .complete = false}));
}

TEST(HermesParser, DamageBehindTheNameIsContent) {
  const Outcome got = hermes("<tool_call>{\"name\":\"a\",\"arguments\":{\"b\":1]} oh</tool_call>");
  EXPECT_EQ(got.calls, (std::vector<Call>{{"a", "{\"b\":1"}}));
  EXPECT_EQ(got.content, "]} oh</tool_call>");
  EXPECT_FALSE(got.complete);
  const Outcome more = hermes("<tool_call>{\"name\":\"a\",\"arguments\":{}} x");
  EXPECT_EQ(more.content, " x");
  EXPECT_TRUE(more.complete);
}

TEST(HermesParser, BalancedButNoJsonIsNotComplete) {
  EXPECT_FALSE(hermes("<tool_call>{\"name\":\"a\",\"arguments\":{b}}</tool_call>").complete);
}

TEST(HermesParser, ArgumentsOfOtherKinds) {
  const auto arguments = [](const std::string& value) {
    const Outcome got =
        hermes("<tool_call>{\"name\":\"a\",\"arguments\": " + value + " }</tool_call>");
    EXPECT_EQ(got.ended, 1) << value;
    return got.calls.empty() ? "" : got.calls[0].arguments;
  };
  EXPECT_EQ(arguments("null"), "{}");
  EXPECT_EQ(arguments(R"("{\"b\": 1}")"), R"({"b": 1})");
  EXPECT_EQ(arguments("{\"b\": \"line\nbreak\t\"}"), R"({"b": "line\nbreak\t"})");
  const Outcome late =
      hermes("<tool_call>{\"arguments\": null, \"name\": \"a\", \"id\": 7}</tool_call>");
  EXPECT_EQ(late, (Outcome{.calls = {{"a", "{}"}}, .ended = 1}));
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"a\"}</tool_call>").calls,
            (std::vector<Call>{{"a", "{}"}}));
}

Outcome qwen3_coder(std::string_view text) {
  return expect_same_however_cut(with(CallFormat::kQwen3Coder), text);
}

TEST(Qwen3CoderParser, TypesComeFromTheSchema) {
  const Outcome got = qwen3_coder(
      "Looking.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nA \"b\" \\ </c>\n\n\td\n"
      "</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n"
      "<parameter=limit>\nnull\n</parameter>\n<parameter=either>\n2.5\n</parameter>\n"
      "<parameter=spots>\n[\"x\", {\"y\": 1}]\n</parameter>\n<parameter=where>\n{\"a\": 1}\n"
      "</parameter>\n<parameter=unknown>\n7\n</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(got.content, "Looking.");
  ASSERT_EQ(got.calls.size(), 1u);
  EXPECT_EQ(got.calls[0].arguments,
            R"({"city": "A \"b\" \\ </c>\n\n\td", "days": 3, "metric": true, "limit": null, )"
            R"("either": 2.5, "spots": ["x", {"y": 1}], "where": {"a": 1}, "unknown": "7"})");
  EXPECT_TRUE(got.complete);
}

TEST(Qwen3CoderParser, ValuesOfTheWrongTypeAreStrings) {
  const Outcome got = qwen3_coder(
      "<tool_call><function=get_weather><parameter=days>\nsoon\n</parameter><parameter=limit>1.5"
      "</parameter><parameter=either>\"q\"</parameter></function></tool_call>");
  EXPECT_EQ(got.calls,
            (std::vector<Call>{
                {"get_weather", R"({"days": "soon", "limit": "1.5", "either": "\"q\""})"}}));
}

TEST(Qwen3CoderParser, CallsWithoutParametersAndWithoutOuterTags) {
  const Outcome got = qwen3_coder(
      "<function=now>\n</function>\n<tool_call>\n<function=now></function></tool_call>\n"
      "<tool_call>\n<function=other>\n<parameter=a>\n\n</parameter>\n</function>\n</tool_call>\n");
  EXPECT_EQ(got, (Outcome{.calls = {{"now", "{}"}, {"now", "{}"}, {"other", R"({"a": ""})"}},
                          .ended = 3}));
}

TEST(Qwen3CoderParser, WhatIsNoCallIsContent) {
  for (const char* text :
       {"<tool_call>", "<tool_call>\n<funct", "<tool_call> x", "<function=>", "<function=a b>",
        "a <function=a\n", "<tool_call>\n<function=now", "</function></tool_call>"}) {
    EXPECT_EQ(qwen3_coder(text), (Outcome{.content = text}));
  }
}

TEST(Qwen3CoderParser, EndsInsideValues) {
  EXPECT_EQ(qwen3_coder("<function=get_weather><parameter=city>\nPar\n</param").calls,
            (std::vector<Call>{{"get_weather", R"({"city": "Par\n</param)"}}));
  EXPECT_EQ(qwen3_coder("<function=get_weather><parameter=days>12").calls,
            (std::vector<Call>{{"get_weather", R"({"days": 12)"}}));
  const Outcome damaged = qwen3_coder("<function=now> oh <parameter=a>1</parameter></function>");
  EXPECT_EQ(damaged.content, " oh <parameter=a>1</parameter></function>");
  EXPECT_FALSE(damaged.complete);
}

Outcome llama3(std::string_view text) {
  return expect_same_however_cut(with(CallFormat::kLlama3Json), text);
}

TEST(Llama3JsonParser, CallsAtTheStart) {
  EXPECT_EQ(llama3(R"({"name": "get_weather", "parameters": {"city": "Paris"}})"),
            (Outcome{.calls = {{"get_weather", R"({"city": "Paris"})"}}, .ended = 1}));
  EXPECT_EQ(llama3("<|python_tag|>{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}; "
                   "{\"name\": \"now\", \"arguments\": {\"a\": 1}}\n"),
            (Outcome{.calls = {{"now", "{}"}, {"now", R"({"a": 1})"}}, .ended = 2}));
  const Outcome late =
      llama3("Sure.\n<|python_tag|>{\"name\": \"now\", \"parameters\": {}} and more");
  EXPECT_EQ(late.calls.size(), 1u);
  EXPECT_EQ(late.content, "Sure. and more");
}

TEST(Llama3JsonParser, OtherJsonIsContent) {
  for (const char* text :
       {R"({"name": "Bob", "parameters": {}})", R"({"name": "now", "age": 3})", R"({"a": 1})", "{}",
        R"({"name": "now", "parameters")", "plain {\"name\": \"now\", \"parameters\": {}}",
        "<|python_tag|>print(1)", "<|python_tag|>", " {", "; {"}) {
    EXPECT_EQ(llama3(text), (Outcome{.content = text}));
  }
}

Outcome mistral(std::string_view text) {
  return expect_same_however_cut(with(CallFormat::kMistral), text);
}

TEST(MistralParser, ArraysOfCalls) {
  EXPECT_EQ(
      mistral("Hm. [TOOL_CALLS] [{\"name\": \"a\", \"arguments\": {\"x\": \"]\"}}, "
              "{\"arguments\": {}, \"name\": \"b\", \"id\": \"abcdefghi\"}]"),
      (Outcome{.content = "Hm.", .calls = {{"a", R"({"x": "]"})"}, {"b", "{}"}}, .ended = 2}));
}

TEST(MistralParser, NamesAndArguments) {
  EXPECT_EQ(
      mistral("[TOOL_CALLS]a{\"x\": {\"y\": 1}}[TOOL_CALLS]b[ARGS]{}"
              "[TOOL_CALLS]c[CALL_ID]abcdefghi[ARGS] {}"),
      (Outcome{.calls = {{"a", R"({"x": {"y": 1}})"}, {"b", "{}"}, {"c", "{}"}}, .ended = 3}));
}

TEST(MistralParser, WhatIsNoCallIsContent) {
  for (const char* text :
       {"[TOOL_CALLS]", "[TOOL_CALLS] [", "[TOOL_CALLS] []", "[TOOL_CALLS] [1]", "[TOOL_CALLS]a",
        "[TOOL_CALLS]a(1)", "[TOOL_CALLS]a[ARG]{}", "[TOOL_CALLS]a[ARGS]1", "[TOOL_CALLS]{}",
        "[TOOL_CALLS][{\"name\":\"a\"", "[TOOL"}) {
    EXPECT_EQ(mistral(text), (Outcome{.content = text}));
  }
  EXPECT_EQ(mistral("[TOOL_CALLS]a{\"x\": [1}").content, "}");
  EXPECT_FALSE(mistral("[TOOL_CALLS]a{\"x\": 1").complete);
}

Outcome reasoned(ReasoningFormat format, PromptReasoning prompt, std::string_view text) {
  OutputParserOptions options = with(CallFormat::kHermes, format);
  options.prompt = prompt;
  return expect_same_however_cut(options, text);
}

TEST(Reasoning, Qwen3) {
  const auto read = [](std::string_view text) {
    return reasoned(ReasoningFormat::kQwen3, PromptReasoning::kNone, text);
  };
  EXPECT_EQ(read("<think>\nSo <b>\n\nthen\n</think>\n\nFour. </think>"),
            (Outcome{.reasoning = "So <b>\n\nthen", .content = "Four. </think>"}));
  EXPECT_EQ(read("\n<think>\n\n</think>\n\nFour."), (Outcome{.content = "Four."}));
  EXPECT_EQ(read("<think>half\n"), (Outcome{.reasoning = "half\n"}));
  EXPECT_EQ(read("Four <think>no</think>"), (Outcome{.content = "Four <think>no</think>"}));
  EXPECT_EQ(read(" \n<thin"), (Outcome{.content = " \n<thin"}));
  EXPECT_EQ(read("<think>a</think>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"),
            (Outcome{.reasoning = "a", .calls = {{"f", "{}"}}, .ended = 1}));
  EXPECT_EQ(read("<think><tool_call>{}</tool_call>"),
            (Outcome{.reasoning = "<tool_call>{}</tool_call>"}));
}

TEST(Reasoning, BegunOrEndedByThePrompt) {
  for (const ReasoningFormat format : {ReasoningFormat::kQwen3, ReasoningFormat::kDeepseekR1}) {
    EXPECT_EQ(reasoned(format, PromptReasoning::kOpen, "a\n</think>\nb"),
              (Outcome{.reasoning = "a", .content = "b"}));
    EXPECT_EQ(reasoned(format, PromptReasoning::kOpen, "<think>a</think>b"),
              (Outcome{.reasoning = "a", .content = "b"}));
    EXPECT_EQ(reasoned(format, PromptReasoning::kClosed, "\nb</think>c"),
              (Outcome{.content = "b</think>c"}));
  }
  EXPECT_EQ(prompt_reasoning("<|assistant|>\n<think>\n"), PromptReasoning::kOpen);
  EXPECT_EQ(prompt_reasoning("<think>\n\n</think>\n\n"), PromptReasoning::kClosed);
  EXPECT_EQ(prompt_reasoning("<think> assistant:"), PromptReasoning::kNone);
  EXPECT_EQ(message_reasoning("<think>\nhalf"), PromptReasoning::kOpen);
  EXPECT_EQ(message_reasoning("<think>\nx</think> half"), PromptReasoning::kClosed);
  EXPECT_EQ(message_reasoning("half"), PromptReasoning::kClosed);
}

TEST(Reasoning, DeepseekR1BeginsInside) {
  EXPECT_EQ(reasoned(ReasoningFormat::kDeepseekR1, PromptReasoning::kNone, "a\nb"),
            (Outcome{.reasoning = "a\nb"}));
}

TEST(OutputParser, DetectsFormatsByTheirTemplates) {
  EXPECT_EQ(detect_call_format("plain {{ messages }}"), CallFormat::kNone);
  EXPECT_EQ(detect_call_format("{% if tools %}<tool_call>{% endif %}"), CallFormat::kHermes);
  EXPECT_EQ(detect_call_format("{% if tools %}<tool_call><function=a><parameter=b>"),
            CallFormat::kQwen3Coder);
  EXPECT_EQ(detect_call_format("{% for tool in tools %}[TOOL_CALLS]"), CallFormat::kMistral);
  EXPECT_EQ(detect_call_format("{{ tools }}\"parameters\": ipython"), CallFormat::kLlama3Json);
  EXPECT_EQ(detect_call_format("{{ tools }}"), CallFormat::kNone);
  EXPECT_EQ(detect_reasoning_format("{{ m }}"), ReasoningFormat::kNone);
  EXPECT_EQ(detect_reasoning_format("</think>"), ReasoningFormat::kQwen3);
  EXPECT_EQ(detect_reasoning_format("<｜Assistant｜></think>"), ReasoningFormat::kDeepseekR1);
}

TEST(OutputParser, LongTextsTakeLinearTime) {
  const std::string spaces(1 << 18, '\n'), tags = [] {
    std::string text;
    while (text.size() < 1 << 18) text += "<tool_call><";
    return text;
  }();
  for (const CallFormat format : {CallFormat::kHermes, CallFormat::kQwen3Coder,
                                  CallFormat::kLlama3Json, CallFormat::kMistral}) {
    for (const std::string& text : {spaces, tags}) {
      Client client(with(format, ReasoningFormat::kQwen3));
      for (const char c : text) client.push({&c, 1});
      EXPECT_EQ(client.finish().content, text);
    }
  }
}

}  // namespace
}  // namespace text
