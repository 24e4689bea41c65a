// Goal: what a request may say of tools, and what past calls become for templates. Method: small
// bodies; every error names its field.
#include "api/parse_tools.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/parse_request.h"

namespace api {
namespace {

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"a"}])";
constexpr const char* kTool =
    R"({"type":"function","function":{"name":"f","parameters":{"type":"object"},"strict":true}})";

std::variant<GenerateRequest, ApiError> parse(const std::string& fields) {
  return parse_request(Endpoint::kChat, fmt::format("{{{}}}", fields), 100);
}

GenerateRequest good(const std::string& fields) {
  auto parsed = parse(fmt::format("{},{}", kMessages, fields));
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << fields << ": " << error->message;
    return {};
  }
  return std::get<GenerateRequest>(std::move(parsed));
}

void bad(const std::string& fields, const std::string& param,
         Problem problem = Problem::kInvalidValue) {
  const auto parsed = parse(fmt::format("{},{}", kMessages, fields));
  const auto* error = std::get_if<ApiError>(&parsed);
  ASSERT_NE(error, nullptr) << fields;
  EXPECT_EQ(error->param, param) << fields << ": " << error->message;
  EXPECT_EQ(error->problem, problem) << fields << ": " << error->message;
}

std::string tools(const std::string& list) {
  return fmt::format("\"tools\":[{}]", list);
}

TEST(ParseTools, ToolsAreKeptAsTheyCame) {
  const GenerateRequest r = good(tools(kTool));
  EXPECT_EQ(r.tools.dump(), fmt::format("[{}]", kTool));
  EXPECT_EQ(r.tool_choice.kind, ToolChoiceKind::kAuto);
  EXPECT_TRUE(r.parallel_tool_calls);
  EXPECT_TRUE(r.looks_for_calls());
  EXPECT_TRUE(good("\"tools\":[]").tools.is_null());
  EXPECT_TRUE(good("\"tools\":null").tools.is_null());
  EXPECT_FALSE(good(tools(kTool) + R"(,"parallel_tool_calls":false)").parallel_tool_calls);
}

TEST(ParseTools, ImpossibleTools) {
  bad("\"tools\":7", "tools");
  bad(tools("7"), "tools[0]");
  bad(tools(R"({"type":"web_search"})"), "tools[0].type", Problem::kUnsupportedParameter);
  bad(tools(R"({"type":"function"})"), "tools[0].function", Problem::kMissingParameter);
  bad(tools(R"({"function":{}})"), "tools[0].function.name", Problem::kMissingParameter);
  bad(tools(R"({"function":{"name":""}})"), "tools[0].function.name");
  bad(tools(R"({"function":{"name":")" + std::string(257, 'a') + "\"}}"), "tools[0].function.name");
  bad(tools(R"({"function":{"name":"f","parameters":7}})"), "tools[0].function.parameters");
  bad(tools(fmt::format("{0},{0}", kTool)), "tools[1].function.name");
  std::string many, keys;
  for (size_t i = 0; i < kToolsMax; ++i)
    many += fmt::format(R"({{"function":{{"name":"f{}"}}}},)", i);
  good(tools(many.substr(0, many.size() - 1)));
  bad(tools(many + kTool), "tools");
  for (size_t i = 0; i <= kKeysMax; ++i) keys += fmt::format("\"k{}\":0,", i);
  keys.pop_back();
  bad(tools(R"({"function":{"name":"f","parameters":{)" + keys + "}}}"), "tools");
}

// What is checked is what is kept: a second value of another type would meet code that trusts it.
TEST(ParseTools, OfAFieldGivenTwiceTheFirstIsKept) {
  const GenerateRequest r =
      good(tools(R"({"function":{"name":"f","name":7},"function":{},"function":7})"));
  EXPECT_EQ(r.tools.dump(), R"([{"function":{"name":"f"}}])");
}

// The tools of messages and responses are checked as those of chats, which they become.
TEST(ParseTools, FieldsBesideEachOther) {
  struct Form {
    Endpoint endpoint;
    const char* rest;
    const char* schema;
  };
  const std::string messages = std::string(R"({"max_tokens":1,)") + kMessages;
  for (const auto& [endpoint, rest, schema] :
       {Form{Endpoint::kMessages, messages.c_str(), "input_schema"},
        Form{Endpoint::kResponses, R"({"input":"a")", "parameters"}}) {
    const auto parse = [&](const std::string& list) {
      return parse_request(endpoint, fmt::format("{},{}}}", rest, tools(list)), 100);
    };
    const auto tool = [&](const std::string& name) {
      const char* type = endpoint == Endpoint::kMessages ? "custom" : "function";
      return fmt::format(R"({{"type":"{}","description":"d","name":{},"{}":{{"type":"object"}}}})",
                         type, name, schema);
    };
    const auto bad = [&](const std::string& list, const std::string& param,
                         Problem problem = Problem::kInvalidValue) {
      const auto parsed = parse(list);
      const auto* error = std::get_if<ApiError>(&parsed);
      ASSERT_NE(error, nullptr) << list;
      EXPECT_EQ(error->param, param) << list << ": " << error->message;
      EXPECT_EQ(error->problem, problem) << list << ": " << error->message;
    };
    const auto parsed = parse(tool(R"("f","name":7)"));
    ASSERT_TRUE(std::holds_alternative<GenerateRequest>(parsed));
    EXPECT_EQ(
        std::get<GenerateRequest>(parsed).tools.dump(),
        R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}])");
    bad("7", "tools[0]");
    bad(tool("7"), "tools[0].name");
    bad(tool(R"("")"), "tools[0].name");
    bad(tool(fmt::format("\"{}\"", std::string(257, 'a'))), "tools[0].name");
    bad(tool(R"("f")") + "," + tool(R"("f")"), "tools[1].name");
    bad(R"({"type":"web_search"})", "tools[0].type", Problem::kUnsupportedParameter);
    const std::string plain = tool(R"("f")");
    const auto with = [&plain](std::string_view old, std::string_view now) {
      const size_t at = plain.find(old);
      return fmt::format("{}{}{}", plain.substr(0, at), now, plain.substr(at + old.size()));
    };
    bad(with("name", "nine"), "tools[0].name", Problem::kMissingParameter);
    bad(with(R"({"type":"object"})", "7"), fmt::format("tools[0].{}", schema));
    std::string many;
    for (size_t i = 0; i < kToolsMax; ++i) many += tool(fmt::format("\"f{}\"", i)) + ",";
    EXPECT_TRUE(std::holds_alternative<GenerateRequest>(parse(many.substr(0, many.size() - 1))));
    bad(many + plain, "tools");
  }
}

TEST(ParseTools, Choice) {
  EXPECT_EQ(good(tools(kTool) + R"(,"tool_choice":"auto")").tool_choice.kind,
            ToolChoiceKind::kAuto);
  EXPECT_FALSE(good(tools(kTool) + R"(,"tool_choice":"none")").looks_for_calls());
  good(R"("tool_choice":"none")");
  good(R"("tool_choice":"auto")");
  bad(R"("tool_choice":"required")", "tool_choice");
  bad(tools(kTool) + R"(,"tool_choice":"always")", "tool_choice");
  bad(tools(kTool) + R"(,"tool_choice":7)", "tool_choice");
  bad(tools(kTool) + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})",
      "tool_choice");
  bad(tools(kTool) + R"(,"tool_choice":{"type":"custom"})", "tool_choice.type",
      Problem::kUnsupportedParameter);
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"f"}})"}) {
    const std::string fields = fmt::format("{},\"tool_choice\":{}", tools(kTool), choice);
    EXPECT_TRUE(good(fields).must_call());
    bad(fields + R"(,"response_format":{"type":"json_object"})", "tool_choice");
  }
}

// The assistant's message with these calls, as templates get it.
std::string past(const std::string& message) {
  auto parsed = parse(fmt::format(R"("messages":[{{"role":"assistant",{}}}])", message));
  if (const auto* error = std::get_if<ApiError>(&parsed)) return error->param;
  return std::get<GenerateRequest>(parsed).messages[0].dump();
}

TEST(ParseTools, PastCalls) {
  EXPECT_EQ(
      past(R"("content":null,"tool_calls":[{"id":"1","type":"function","index":0,
        "function":{"name":"f","arguments":"{\"b\": 1, \"a\": [2.5]}"}}])"),
      R"({"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"b":1,"a":[2.5]}}}],"content":null})");
  const auto arguments = [](const std::string& value) {
    const std::string text =
        past(R"("content":"x","tool_calls":[{"function":{"name":"f","arguments":)" + value + "}}]");
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return text;
    return json["tool_calls"][0]["function"]["arguments"].dump();
  };
  EXPECT_EQ(arguments(R"("")"), "{}");
  EXPECT_EQ(arguments("null"), "{}");
  EXPECT_EQ(arguments(R"({"a":1})"), R"({"a":1})");
  EXPECT_EQ(arguments(R"("[1]")"), R"("[1]")");
  EXPECT_EQ(arguments(R"("{\"a\": ")"), R"("{\"a\": ")");
  EXPECT_EQ(arguments("7"), "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(past(R"("tool_calls":7)"), "messages[0].tool_calls");
  EXPECT_EQ(past(R"("tool_calls":[{}])"), "messages[0].tool_calls[0].function");
  EXPECT_EQ(past(R"("tool_calls":[{"function":{}}])"), "messages[0].tool_calls[0].function.name");
  EXPECT_EQ(past(R"("reasoning":"r","content":"x")"),
            R"({"role":"assistant","content":"x","reasoning_content":"r"})");
}

}  // namespace
}  // namespace api
