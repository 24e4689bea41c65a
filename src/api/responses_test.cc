// OpenAI's responses: bodies against what a chat template gets of them, and transcripts of a server
// whose engine writes text, reasoning and calls: a stream's events come in the documented order,
// and its last one holds the response that the same request without stream gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/parse_request.h"
#include "api/testing.h"

namespace api {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::body_of;
using testing::TestServer;
using testing::typed_events_of;

GenerateRequest parse(const std::string& body) {
  auto outcome = parse_request(Endpoint::kResponses, body, testing::kVocab);
  const auto* error = std::get_if<ApiError>(&outcome);
  EXPECT_EQ(error, nullptr) << error->message;
  return error == nullptr ? std::get<GenerateRequest>(outcome) : GenerateRequest{};
}

TEST(ResponsesRequest, ItemsBecomeMessagesOfAChat) {
  const GenerateRequest r = parse(R"({"instructions":"Be brief.","input":[
    {"role":"developer","content":"Use tools."},
    {"role":"user","content":[{"type":"input_text","text":"look"}]},
    {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
    {"type":"message","id":"msg_1","role":"assistant","status":"completed",
     "content":[{"type":"output_text","text":"I look.","annotations":[]}]},
    {"type":"function_call","id":"fc_1","call_id":"c1","name":"ls","arguments":"{\"path\":\"/\"}"},
    {"type":"function_call","call_id":"c2","name":"pwd","arguments":""},
    {"type":"function_call_output","call_id":"c1","output":"a"},
    {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"/root"}]},
    {"role":"developer","content":"Now."},
    {"role":"user","content":"and?"}]})");
  EXPECT_EQ(r.messages, ordered_json::parse(R"([
    {"role":"system","content":"Be brief.\nUse tools."},
    {"role":"user","content":"look"},
    {"role":"assistant","content":"I look.","reasoning_content":"hm","tool_calls":[
      {"id":"c1","type":"function","function":{"name":"ls","arguments":{"path":"/"}}},
      {"id":"c2","type":"function","function":{"name":"pwd","arguments":{}}}]},
    {"role":"tool","tool_call_id":"c1","content":"a"},
    {"role":"tool","tool_call_id":"c2","content":"/root"},
    {"role":"developer","content":"Now."},
    {"role":"user","content":"and?"}])"));
  EXPECT_EQ(parse(R"({"input":"hi"})").messages,
            ordered_json::parse(R"([{"role":"user","content":"hi"}])"));
}

TEST(ResponsesRequest, ToolsAreNestedAsChatsHaveThem) {
  const GenerateRequest r = parse(R"({"input":"a","parallel_tool_calls":false,"tools":[
    {"type":"function","name":"ls","description":"lists","parameters":{"type":"object"},"strict":false}]})");
  EXPECT_EQ(r.tools, ordered_json::parse(R"([{"type":"function","function":{"name":"ls",
    "description":"lists","parameters":{"type":"object"},"strict":false}}])"));
  EXPECT_FALSE(r.parallel_tool_calls);
}

TEST(ResponsesRequest, FormatConstrainsTheText) {
  using Kind = grammar::Spec::Kind;
  const auto asking = [](const std::string& format) {
    return R"({"input":"a","text":{"verbosity":"low","format":)" + format + "}}";
  };
  for (const char* format : {"null", R"({"type":"text"})"})
    EXPECT_FALSE(parse(asking(format)).constraint) << format;
  GenerateRequest r = parse(asking(R"({"type":"json_object"})"));
  ASSERT_TRUE(r.constraint.has_value());
  EXPECT_EQ(r.constraint->field, "text.format");
  EXPECT_EQ(r.constraint->spec.kind, Kind::kJsonObject);
  r = parse(asking(R"({"type":"json_schema","name":"n","schema":{"type":"object","x":[1]}})"));
  ASSERT_TRUE(r.constraint.has_value());
  EXPECT_EQ(r.constraint->spec.kind, Kind::kJsonSchema);
  EXPECT_EQ(r.constraint->spec.text, R"({"type":"object","x":[1]})");
  EXPECT_TRUE(r.constraint->spec.closed);
  r = parse(asking(R"({"type":"json_schema","name":"n","schema":{},"strict":false})"));
  ASSERT_TRUE(r.constraint.has_value());
  EXPECT_FALSE(r.constraint->spec.closed);
  for (const auto& [format, param] : std::vector<std::pair<const char*, const char*>>{
           {"7", "text.format"},
           {"{}", "text.format"},
           {R"({"type":"grammar"})", "text.format"},
           {R"({"type":"json_schema","name":"n"})", "text.format"},
           {R"({"type":"json_schema","schema":[]})", "text.format.schema"},
           {R"({"type":"json_schema","schema":{},"strict":1})", "text.format.strict"}}) {
    auto outcome = parse_request(Endpoint::kResponses, asking(format), testing::kVocab);
    const auto* error = std::get_if<ApiError>(&outcome);
    ASSERT_NE(error, nullptr) << format;
    EXPECT_EQ(error->problem, Problem::kInvalidValue) << format;
    EXPECT_EQ(error->param, param) << format;
  }
}

TEST(ResponsesRequest, WhatNeedsAStoreIsRefusedByName) {
  const auto expect = [](const std::string& more, Problem problem, const char* param) {
    auto outcome =
        parse_request(Endpoint::kResponses, R"({"input":"a",)" + more + "}", testing::kVocab);
    const auto* error = std::get_if<ApiError>(&outcome);
    ASSERT_NE(error, nullptr) << more;
    EXPECT_EQ(error->problem, problem) << more << error->message;
    EXPECT_EQ(error->param, param) << error->message;
  };
  const Problem no = Problem::kUnsupportedParameter;
  expect(R"("previous_response_id":"resp_1")", no, "previous_response_id");
  expect(R"("background":true)", no, "background");
  expect(R"("conversation":{"id":"c"})", no, "conversation");
  expect(R"("prompt":{"id":"p"})", no, "prompt");
  expect(R"("truncation":"auto")", no, "truncation");
  expect(R"("include":["message.output_text.logprobs"])", no, "include");
  expect(R"("tools":[{"type":"web_search"}])", no, "tools[0].type");
  expect(R"("tool_choice":{"type":"web_search"})", no, "tool_choice");
  expect(R"("top_logprobs":2)", no, "top_logprobs");
  expect(R"("max_output_tokens":0)", Problem::kInvalidValue, "max_output_tokens");
  for (const auto& [items, problem, param] :
       std::vector<std::tuple<const char*, Problem, const char*>>{
           {R"([{"type":"item_reference","id":"x"}])", no, "input[0].type"},
           {R"([{"type":"web_search_call","id":"x"}])", no, "input[0].type"},
           {R"([{"role":"user","content":[{"type":"input_image","image_url":"x"}]}])", no,
            "input[0].content[0].type"},
           {R"([{"role":"tool","content":"a"}])", Problem::kInvalidValue, "input[0].role"},
           {R"([{"type":"function_call","name":"n","arguments":"{}"}])", Problem::kInvalidValue,
            "input[0].call_id"},
           {"[]", Problem::kInvalidValue, "input"},
           {"7", Problem::kInvalidValue, "input"}}) {
    auto outcome = parse_request(Endpoint::kResponses, R"({"input":)" + std::string(items) + "}",
                                 testing::kVocab);
    const auto* error = std::get_if<ApiError>(&outcome);
    ASSERT_NE(error, nullptr) << items;
    EXPECT_EQ(error->problem, problem) << items;
    EXPECT_EQ(error->param, param) << items;
  }
  parse(R"({"input":"a","previous_response_id":null,"background":false,"store":true,
            "include":["reasoning.encrypted_content"],"truncation":"disabled","top_logprobs":0})");
}

// ---- answers

// Ids and times away, which differ between two requests.
json without_ids(json value) {
  if (value.is_object()) {
    for (const char* key : {"id", "created_at", "item_id", "call_id"}) value.erase(key);
  }
  if (value.is_structured()) {
    for (json& item : value) item = without_ids(std::move(item));
  }
  return value;
}

TEST(Responses, WholeAnswer) {
  TestServer server;
  server.engine().cached_tokens = 2;
  json body = json::parse(
      body_of(server.post("/v1/responses", R"({"input":"a","instructions":"S","store":true,
        "metadata":{"k":"v"},"max_output_tokens":9})")));
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(body["object"], "response");
  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["instructions"], "S");
  EXPECT_EQ(body["max_output_tokens"], 9);
  EXPECT_EQ(body["metadata"], json({{"k", "v"}}));
  EXPECT_EQ(body["store"], false);
  EXPECT_EQ(body["output"][0]["role"], "assistant");
  EXPECT_EQ(body["output"][0]["content"],
            json::parse(R"([{"type":"output_text","text":"hi","annotations":[],"logprobs":[]}])"));
  EXPECT_EQ(body["usage"]["input_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(body["usage"]["output_tokens"], 3);
}

TEST(Responses, LengthIsIncomplete) {
  TestServer server;
  const json body =
      json::parse(body_of(server.post("/v1/responses", R"({"input":"a","max_output_tokens":1})")));
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(body["output"][0]["status"], "incomplete");
}

TEST(Responses, StreamOfReasoningTextAndCalls) {
  ServerOptions options = testing::test_options();
  options.tool_call_parser = "hermes";
  options.reasoning_parser = "qwen3";
  TestServer server(options, 4000);
  server.engine().say(
      "<think>hm</think>yes<tool_call>{\"name\": \"ls\", \"arguments\": {\"p\": 1}}</tool_call>");
  const std::string fields =
      R"("input":"a","tools":[{"type":"function","name":"ls","parameters":{"type":"object"}}])";
  const json whole = json::parse(body_of(server.post("/v1/responses", "{" + fields + "}")));
  const auto events =
      typed_events_of(server.post("/v1/responses", R"({"stream":true,)" + fields + "}"));
  std::vector<std::string> types;
  int64_t number = 0;
  for (const json& event : events) {
    EXPECT_EQ(event["sequence_number"], number++);
    const std::string type = event["type"];
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  const std::string r = "response.";
  EXPECT_EQ(
      types,
      (std::vector<std::string>{
          r + "created", r + "in_progress", r + "output_item.added", r + "content_part.added",
          r + "reasoning_text.delta", r + "reasoning_text.done", r + "content_part.done",
          r + "output_item.done", r + "output_item.added", r + "content_part.added",
          r + "output_text.delta", r + "output_text.done", r + "content_part.done",
          r + "output_item.done", r + "output_item.added", r + "function_call_arguments.delta",
          r + "function_call_arguments.done", r + "output_item.done", r + "completed"}));
  EXPECT_EQ(without_ids(events.back()["response"]), without_ids(whole));
  ASSERT_EQ(whole["output"].size(), 3u);
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "hm");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "yes");
  EXPECT_EQ(whole["output"][2]["type"], "function_call");
  EXPECT_EQ(whole["output"][2]["name"], "ls");
  EXPECT_EQ(json::parse(whole["output"][2]["arguments"].get<std::string>()), json({{"p", 1}}));
  EXPECT_GT(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 5);
  EXPECT_LT(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 25);
  // Each item that is told has one id and one place in all its events.
  std::map<int64_t, std::string> ids;
  for (const json& event : events) {
    if (event["type"] == r + "output_item.added") ids[event["output_index"]] = event["item"]["id"];
    if (!event.contains("item_id")) continue;
    EXPECT_EQ(event["item_id"], ids[event["output_index"]]) << event;
  }
}

TEST(Responses, FailureEndsTheStream) {
  TestServer server;
  server.engine().reply = {'x'};
  server.engine().fails = "the step failed";
  const auto events =
      typed_events_of(server.post("/v1/responses", R"({"input":"a","stream":true})"));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["error"]["code"], "server_error");
}

}  // namespace
}  // namespace api
