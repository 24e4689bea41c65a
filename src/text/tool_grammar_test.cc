// Goal: what a grammar lets a model write is what the parser of the format reads. Method: texts put
// together as the grammar says, read back.
#include "text/tool_grammar.h"

#include <gtest/gtest.h>

namespace text {
namespace {

using nlohmann::ordered_json;

const ordered_json kTools = ordered_json::parse(R"([
  {"type":"function","function":{"name":"a","parameters":{"type":"object","properties":{"k":{"type":"string"}}}}},
  {"type":"function","function":{"name":"b"}}])");

std::string written(const ToolCallGrammar& grammar, const std::string& arguments) {
  std::string text = grammar.before;
  for (const CallGrammar& call : grammar.calls) {
    if (&call != &grammar.calls.front()) text += grammar.separator;
    text += call.begin + arguments + call.end;
  }
  return text + grammar.after;
}

TEST(ToolGrammar, ParsersReadWhatItAllows) {
  for (const CallFormat format : {CallFormat::kHermes, CallFormat::kQwen3Coder,
                                  CallFormat::kLlama3Json, CallFormat::kMistral}) {
    const ToolCallGrammar grammar = tool_call_grammar(format, kTools, "", /*parallel=*/true);
    EXPECT_FALSE(grammar.single);
    ASSERT_EQ(grammar.calls.size(), 2u);
    EXPECT_EQ(grammar.calls[0].schema, kTools[0]["function"]["parameters"]);
    EXPECT_EQ(grammar.calls[1].schema["type"], "object");
    const bool xml = grammar.arguments == ToolCallGrammar::Arguments::kQwenXml;
    OutputParser parser({.calls = format, .tools = &kTools});
    OutputPiece piece;
    parser.push(written(grammar, xml ? "<parameter=k>\nv\n</parameter>" : R"({"k": "v"})"), piece);
    parser.finish(piece);
    EXPECT_EQ(piece.content, "") << name_of(format);
    ASSERT_EQ(piece.calls.size(), 2u) << name_of(format);
    EXPECT_EQ(piece.calls[0].name, "a");
    EXPECT_EQ(piece.calls[1].name, "b");
    for (const CallPiece& call : piece.calls) EXPECT_EQ(call.arguments, R"({"k": "v"})");
    EXPECT_TRUE(parser.calls_complete());
    EXPECT_EQ(parser.calls_ended(), 2);
  }
}

// Text, a call in each way that there is, text: both texts are content, and each call is whole.
TEST(ToolGrammar, ParsersReadCallsInRunningText) {
  const ordered_json tools = ordered_json::parse(
      R"([{"type":"function","function":{"name":"a","strict":true}},
          {"type":"function","function":{"name":"b","strict":false}}])");
  for (const CallFormat format :
       {CallFormat::kHermes, CallFormat::kQwen3Coder, CallFormat::kMistral}) {
    const auto grammar = free_call_grammar(format, tools);
    ASSERT_TRUE(grammar) << name_of(format);
    const bool xml = grammar->arguments == ToolCallGrammar::Arguments::kQwenXml;
    const std::string arguments = xml ? "<parameter=k>\nv\n</parameter>" : R"({"k": "v"})";
    std::vector<std::pair<std::string, size_t>> ways;  // a text and the calls in it
    for (const CallGrammar& call : grammar->calls) {
      EXPECT_EQ(call.strict, call.begin.find("b") == std::string::npos) << call.begin;
      ways.emplace_back(call.begin + arguments + call.end, 1);
    }
    if (grammar->list) ways.emplace_back(written(*grammar->list, arguments), 2);
    for (const auto& [text, calls] : ways) {
      EXPECT_TRUE(text.starts_with(grammar->marker)) << text;
      OutputParser parser({.calls = format, .tools = &tools});
      OutputPiece piece;
      parser.push("before" + text + "behind", piece);
      parser.finish(piece);
      std::erase(piece.content, '\n');  // white space around a call may be the text's
      EXPECT_EQ(piece.content, "beforebehind") << text;
      ASSERT_EQ(piece.calls.size(), calls) << text;
      for (const CallPiece& call : piece.calls) EXPECT_EQ(call.arguments, R"({"k": "v"})");
      EXPECT_TRUE(parser.calls_complete()) << text;
    }
  }
  EXPECT_FALSE(free_call_grammar(CallFormat::kLlama3Json, tools));
}

TEST(ToolGrammar, OnlyTheNamedTool) {
  const ToolCallGrammar grammar =
      tool_call_grammar(CallFormat::kHermes, kTools, "b", /*parallel=*/false);
  EXPECT_TRUE(grammar.single);
  ASSERT_EQ(grammar.calls.size(), 1u);
  EXPECT_EQ(grammar.calls[0].begin, "<tool_call>\n{\"name\": \"b\", \"arguments\": ");
}

}  // namespace
}  // namespace text
