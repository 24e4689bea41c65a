// Anthropic's shapes: bodies against what a chat template gets of them, transcripts of a server
// whose engine follows a script, and a format that is handed reasoning and calls, whole and
// streamed: the blocks of a stream, put together as Anthropic's client does, must be those of the
// whole answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/messages_format.h"
#include "api/parse_request.h"
#include "api/testing.h"

namespace api {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::body_of;
using testing::FakeEngine;
using testing::TestServer;
using testing::typed_events_of;

GenerateRequest parse(const std::string& body, Endpoint endpoint = Endpoint::kMessages) {
  auto outcome = parse_request(endpoint, body, testing::kVocab);
  const auto* error = std::get_if<ApiError>(&outcome);
  EXPECT_EQ(error, nullptr) << error->message;
  return error == nullptr ? std::get<GenerateRequest>(outcome) : GenerateRequest{};
}

ApiError refused(const std::string& body, Endpoint endpoint = Endpoint::kMessages) {
  auto outcome = parse_request(endpoint, body, testing::kVocab);
  const auto* error = std::get_if<ApiError>(&outcome);
  EXPECT_NE(error, nullptr) << body;
  return error == nullptr ? ApiError{} : *error;
}

std::string with_messages(const std::string& messages, const std::string& more = "") {
  return R"({"max_tokens":5,"messages":)" + messages + more + "}";
}

TEST(MessagesRequest, BlocksBecomeMessagesOfAChat) {
  const GenerateRequest r = parse(with_messages(R"([
    {"role":"user","content":"look"},
    {"role":"assistant","content":[
      {"type":"thinking","thinking":"hm","signature":"s"},
      {"type":"redacted_thinking","data":"x"},
      {"type":"text","text":"I look.","cache_control":{"type":"ephemeral"}},
      {"type":"tool_use","id":"t1","name":"ls","input":{"path":"/"}},
      {"type":"tool_use","id":"t2","name":"pwd","input":{}}]},
    {"role":"user","content":[
      {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"type":"tool_result","tool_use_id":"t2","content":"/root","is_error":false},
      {"type":"text","text":"and?"}]}])",
                                                R"(,"system":[{"type":"text","text":"Be brief."},
      {"type":"text","text":"x-anthropic-billing-header: cch=1f;"},
      {"type":"text","text":"Use tools.","cache_control":{"type":"ephemeral"}}])"));
  EXPECT_EQ(r.messages, ordered_json::parse(R"([
    {"role":"system","content":"Be brief.\nUse tools."},
    {"role":"user","content":"look"},
    {"role":"assistant","content":"I look.","reasoning_content":"hm","tool_calls":[
      {"id":"t1","type":"function","function":{"name":"ls","arguments":{"path":"/"}}},
      {"id":"t2","type":"function","function":{"name":"pwd","arguments":{}}}]},
    {"role":"tool","tool_call_id":"t1","content":"a\nb"},
    {"role":"tool","tool_call_id":"t2","content":"/root"},
    {"role":"user","content":"and?"}])"));
  EXPECT_FALSE(r.continue_final_message);
}

// Billing blocks differ with each request, so any rest of one would keep the prompt from the cache.
TEST(MessagesRequest, BillingHeadersLeaveNoTrace) {
  const std::string user = R"([{"role":"user","content":"a"}])";
  const auto prompt = [&](const std::string& system) {
    return parse(with_messages(user, R"(,"system":)" + system)).messages;
  };
  const ordered_json without = prompt(R"([{"type":"text","text":"S"}])");
  EXPECT_EQ(
      prompt(
          R"([{"type":"text","text":"x-anthropic-billing-header: a=1"},{"type":"text","text":"S"}])"),
      without);
  EXPECT_EQ(prompt(R"([{"type":"text","text":"x-anthropic-billing-header: a=2"}])"),
            parse(with_messages(user)).messages);
  EXPECT_NE(
      prompt(
          R"([{"type":"text","text":"about x-anthropic-billing-header: a"},{"type":"text","text":"S"}])"),
      without);
}

TEST(MessagesRequest, SystemMessagesComeToTheFront) {
  const GenerateRequest r =
      parse(with_messages(R"([{"role":"user","content":"a"},{"role":"system","content":"two"}])",
                          R"(,"system":"one")"));
  EXPECT_EQ(r.messages, ordered_json::parse(R"([{"role":"system","content":"one\ntwo"},
                                               {"role":"user","content":"a"}])"));
}

TEST(MessagesRequest, LastAssistantMessageIsContinued) {
  EXPECT_TRUE(
      parse(with_messages(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])"))
          .continue_final_message);
}

TEST(MessagesRequest, FieldsHaveOnePlaceWithThoseOfChats) {
  const GenerateRequest r = parse(with_messages(R"([{"role":"user","content":"a"}])", R"(,
    "stop_sequences":["x","y"],"temperature":0.5,"top_k":3,"top_p":0.9,"stream":true,
    "output_config":{"effort":"low"},"thinking":{"type":"disabled"},"metadata":{"user_id":"u"},"service_tier":"auto","cache_salt":"s")"));
  EXPECT_EQ(r.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(*r.max_tokens, 5);
  EXPECT_EQ(r.sampling.top_k, 3);
  EXPECT_TRUE(r.stream);
  EXPECT_EQ(r.template_kwargs, ordered_json({{"enable_thinking", false}}));
  EXPECT_EQ(r.cache_salt, "s");
  EXPECT_EQ(r.reasoning_effort, "low");
}

TEST(MessagesRequest, TheHighestEffortIsMax) {
  const std::string user = R"([{"role":"user","content":"a"}])";
  EXPECT_EQ(parse(with_messages(user, R"(,"output_config":{"effort":"max"})")).reasoning_effort,
            "xhigh");
}

TEST(MessagesRequest, FormatConstrainsTheText) {
  const std::string user = R"([{"role":"user","content":"a"}])";
  const auto config = [&](const std::string& format) {
    return with_messages(user, R"(,"output_config":{"effort":"low","format":)" + format + "}");
  };
  const GenerateRequest r =
      parse(config(R"({"type":"json_schema","schema":{"type":"object","x":[1]}})"));
  ASSERT_TRUE(r.constraint.has_value());
  EXPECT_EQ(r.constraint->field, "output_config.format");
  EXPECT_EQ(r.constraint->spec.kind, grammar::Spec::Kind::kJsonSchema);
  EXPECT_EQ(r.constraint->spec.text, R"({"type":"object","x":[1]})");
  EXPECT_TRUE(r.constraint->spec.closed);
  EXPECT_EQ(r.reasoning_effort, "low");
  EXPECT_FALSE(parse(config("null")).constraint);
  for (const auto& [format, param] : std::vector<std::pair<const char*, const char*>>{
           {"7", "output_config.format"},
           {"{}", "output_config.format"},
           {R"({"type":"text"})", "output_config.format"},
           {R"({"type":"json_object"})", "output_config.format"},
           {R"({"type":"json_schema"})", "output_config.format"},
           {R"({"type":"json_schema","schema":null})", "output_config.format"},
           {R"({"type":"json_schema","schema":[]})", "output_config.format.schema"}}) {
    const ApiError error = refused(config(format));
    EXPECT_EQ(error.problem, Problem::kInvalidValue) << format;
    EXPECT_EQ(error.param, param) << format;
  }
}

TEST(MessagesRequest, OutputFormatIsTheFormatsOlderName) {
  const std::string user = R"([{"role":"user","content":"a"}])";
  const std::string format = R"({"type":"json_schema","schema":{"type":"object"}})";
  const GenerateRequest r = parse(with_messages(user, R"(,"output_format":)" + format));
  ASSERT_TRUE(r.constraint.has_value());
  EXPECT_EQ(r.constraint->field, "output_format");
  EXPECT_EQ(r.constraint->spec.text, R"({"type":"object"})");
  EXPECT_FALSE(parse(with_messages(user, R"(,"output_format":null)")).constraint);
  EXPECT_EQ(refused(with_messages(user, R"(,"output_format":{"type":"text"})")).param,
            "output_format");
  EXPECT_EQ(refused(with_messages(user, R"(,"output_config":{"format":)" + format +
                                            R"(},"output_format":)" + format))
                .param,
            "output_format")
      << "one of the two";
}

// A call has no text that a format could govern.
TEST(MessagesRequest, AFormatBesideACallThatMustBeMadeIsRefused) {
  EXPECT_EQ(refused(with_messages(R"([{"role":"user","content":"a"}])",
                                  R"(,"tools":[{"name":"f","input_schema":{}}],
      "tool_choice":{"type":"any"},
      "output_format":{"type":"json_schema","schema":{"type":"object"}})"))
                .param,
            "tool_choice");
}

TEST(MessagesRequest, RefusalsNameTheField) {
  const auto expect = [](const std::string& body, Problem problem, const char* param) {
    const ApiError error = refused(body);
    EXPECT_EQ(error.problem, problem) << body << error.message;
    EXPECT_EQ(error.param, param) << error.message;
  };
  const std::string user = R"([{"role":"user","content":"a"}])";
  expect(R"({"messages":)" + user + "}", Problem::kMissingParameter, "max_tokens");
  expect(R"({"max_tokens":1})", Problem::kMissingParameter, "messages");
  expect(R"({"max_tokens":0,"messages":)" + user + "}", Problem::kInvalidValue, "max_tokens");
  expect(with_messages("[]"), Problem::kInvalidValue, "messages");
  expect(with_messages(R"([{"role":"tool","content":"a"}])"), Problem::kInvalidValue,
         "messages[0].role");
  expect(with_messages(R"([{"role":"user"}])"), Problem::kMissingParameter, "messages[0].content");
  expect(with_messages(R"([{"role":"user","content":[{"type":"image","source":{}}]}])"),
         Problem::kUnsupportedParameter, "messages[0].content[0].type");
  expect(with_messages(R"([{"role":"user","content":[{"type":"tool_result","content":"a"}]}])"),
         Problem::kInvalidValue, "messages[0].content[0].tool_use_id");
  expect(
      with_messages(
          R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image"}]}]}])"),
      Problem::kUnsupportedParameter, "messages[0].content[0].content[0].type");
  expect(
      with_messages(
          R"([{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"n","input":"{}"}]}])"),
      Problem::kInvalidValue, "messages[0].content[0].input");
  expect(with_messages(user, R"(,"system":5)"), Problem::kInvalidValue, "system");
  expect(with_messages(user, R"(,"thinking":{"type":"much"})"), Problem::kInvalidValue, "thinking");
  expect(with_messages(user, R"(,"tool_choice":"auto")"), Problem::kInvalidValue, "tool_choice");
  expect(with_messages(user, R"(,"tools":[{"name":"n"}])"), Problem::kInvalidValue,
         "tools[0].input_schema");
  expect(with_messages(user, R"(,"tools":[{"type":"bash_20250124","name":"bash"}])"),
         Problem::kUnsupportedParameter, "tools[0].type");
  expect(with_messages(user, R"(,"mcp_servers":[{"url":"x"}])"), Problem::kUnsupportedParameter,
         "mcp_servers");
}

TEST(Messages, WholeAnswer) {
  TestServer server;
  server.engine().cached_tokens = 2;
  json body = json::parse(body_of(
      server.post("/v1/messages", R"({"model":"bytes","max_tokens":9,"stop_sequences":["zz"],
        "messages":[{"role":"user","content":"a"}]})",
                  "anthropic-version: 2023-06-01\r\nanthropic-beta: x-1\r\n")));
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("msg_"));
  body.erase("id");
  const int64_t prompt = std::ssize(server.engine().wait_for_submitted(1)[0].request.prompt);
  EXPECT_EQ(body["usage"]["input_tokens"], prompt - 2);
  body["usage"].erase("input_tokens");
  EXPECT_EQ(body, json::parse(R"({"type":"message","role":"assistant","model":"bytes",
    "content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","stop_sequence":null,
    "usage":{"cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":3}})"));
}

TEST(Messages, Stream) {
  TestServer server;
  server.engine().reply = {'h', 'i', 'z', 'z', 'q'};
  const std::string answer =
      server.post("/v1/messages", R"({"max_tokens":9,"stop_sequences":["zz"],"stream":true,
        "messages":[{"role":"user","content":"a"}]})");
  EXPECT_NE(answer.find("Content-Type: text/event-stream"), std::string::npos);
  const auto events = typed_events_of(answer);
  std::vector<std::string> types;
  for (const json& event : events) types.push_back(event["type"]);
  EXPECT_EQ(types,
            (std::vector<std::string>{"message_start", "content_block_start", "content_block_delta",
                                      "content_block_delta", "content_block_stop", "message_delta",
                                      "message_stop"}));
  EXPECT_EQ(events[0]["message"]["content"], json::array());
  EXPECT_EQ(events[0]["message"]["stop_reason"], json());
  EXPECT_GT(events[0]["message"]["usage"]["input_tokens"], 0);
  EXPECT_EQ(events[1]["content_block"], json::parse(R"({"type":"text","text":""})"));
  EXPECT_EQ(events[2]["delta"], json::parse(R"({"type":"text_delta","text":"h"})"));
  EXPECT_EQ(events[5]["delta"],
            json::parse(R"({"stop_reason":"stop_sequence","stop_sequence":"zz"})"));
  EXPECT_GE(events[5]["usage"]["output_tokens"], 4);
}

TEST(Messages, CallsAreBlocksAndTheReasonToStop) {
  ServerOptions options = testing::test_options();
  options.tool_call_parser = "hermes";
  options.reasoning_parser = "qwen3";
  TestServer server(options, 4000);
  server.engine().say(
      "<think>hm</think>yes<tool_call>{\"name\": \"ls\", \"arguments\": {\"p\": 1}}</tool_call>");
  const std::string fields = R"("max_tokens":99,"messages":[{"role":"user","content":"a"}],
    "tools":[{"name":"ls","input_schema":{"type":"object"}}])";
  json whole = json::parse(body_of(server.post("/v1/messages", "{" + fields + "}")));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  ASSERT_EQ(whole["content"].size(), 3u) << whole;
  EXPECT_EQ(whole["content"][0]["thinking"], "hm");
  EXPECT_EQ(whole["content"][1]["text"], "yes");
  EXPECT_EQ(whole["content"][2]["name"], "ls");
  EXPECT_EQ(whole["content"][2]["input"], json({{"p", 1}}));
  const auto events =
      typed_events_of(server.post("/v1/messages", R"({"stream":true,)" + fields + "}"));
  EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], "tool_use");
}

TEST(Messages, LengthIsMaxTokens) {
  TestServer server;
  const json body = json::parse(body_of(server.post(
      "/v1/messages", R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}]})")));
  EXPECT_EQ(body["stop_reason"], "max_tokens");
}

TEST(Messages, CountTokensIsThePromptOfTheMessage) {
  TestServer server;
  const std::string fields = R"("system":"S","messages":[{"role":"user","content":"abc"}])";
  const json count =
      json::parse(body_of(server.post("/v1/messages/count_tokens", "{" + fields + "}")));
  server.post("/v1/messages", R"({"max_tokens":1,)" + fields + "}");
  EXPECT_EQ(
      count,
      json({{"input_tokens", server.engine().wait_for_submitted(1)[0].request.prompt.size()}}));
}

TEST(Messages, ErrorsHaveAnthropicsShape) {
  TestServer server;
  const std::string answer = server.post("/v1/messages", "{}", "x-request-id: r7\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << answer;
  EXPECT_EQ(json::parse(body_of(answer)), json::parse(R"({"type":"error","request_id":"r7",
    "error":{"type":"invalid_request_error","message":"`messages` is required."}})"));
  server.engine().reply = {'x'};
  server.engine().fails = "the step failed";
  const auto events = typed_events_of(
      server.post("/v1/messages",
                  R"({"max_tokens":5,"stream":true,"messages":[{"role":"user","content":"a"}]})"));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back()["type"], "error");
  EXPECT_EQ(events.back()["error"]["type"], "api_error");
}

// So do those of what never reaches a handler, as far as its head came.
TEST(Messages, RefusalsOfTheServerHaveAnthropicsShape) {
  TestServer server;
  const auto expect = [](const std::string& answer, const char* status, const char* type) {
    EXPECT_TRUE(answer.starts_with(std::string("HTTP/1.1 ") + status)) << answer;
    EXPECT_NE(answer.find("x-request-id: r7\r\n"), std::string::npos) << answer;
    const json error = json::parse(body_of(answer));
    EXPECT_EQ(error["request_id"], "r7") << answer;
    EXPECT_EQ(error["error"]["type"], type) << answer;
  };
  const std::string id = "x-request-id: r7\r\n";
  expect(server.post("/v1/messages/batches", "{}", id), "404", "not_found_error");
  expect(server.exchange("GET /v1/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                         id + "\r\n"),
         "405", "invalid_request_error");
  expect(server.post("/v1/messages", std::string(100'001, ' '), id), "413", "request_too_large");
  expect(server.post("/v1/messages", "{}", id + "x: " + std::string(5000, 'y') + "\r\n"), "431",
         "invalid_request_error");
}

// Who is refused for the head alone can name the request too: by the id given, or a new one.
TEST(Messages, RefusalsOfAccessCarryTheRequestId) {
  ServerOptions options = testing::test_options();
  TestServer open(options);
  options.access.api_keys = {"secret"};
  TestServer keyed(options);
  const auto refused = [](TestServer& server, const std::string& more, const char* status) {
    const std::string answer =
        server.exchange("POST /v1/messages HTTP/1.1\r\nConnection: close\r\nContent-Length: 2\r\n" +
                        more + "\r\n{}");
    EXPECT_TRUE(answer.starts_with(std::string("HTTP/1.1 ") + status)) << answer;
    const std::string id = json::parse(body_of(answer))["request_id"].get<std::string>();
    EXPECT_NE(answer.find("x-request-id: " + id + "\r\n"), std::string::npos) << answer;
    return id;
  };
  EXPECT_EQ(refused(keyed, "Host: localhost\r\nx-request-id: r1\r\n", "401"), "r1");
  EXPECT_EQ(refused(open, "Host: evil.example\r\nx-request-id: r2\r\n", "403"), "r2");
  EXPECT_EQ(refused(open, "Host: localhost\r\nx-request-id: r3\r\n", "415"), "r3");
  EXPECT_FALSE(refused(keyed, "Host: localhost\r\n", "401").empty());
}

TEST(Messages, PingsAreEvents) {
  ServerOptions options = testing::test_options();
  options.ping_interval = std::chrono::milliseconds(20);
  TestServer server(options);
  server.engine().hold = true;
  http::testing::RawClient client(server.port());
  client.send(TestServer::post_bytes(
      "/v1/messages",
      R"({"max_tokens":5,"stream":true,"messages":[{"role":"user","content":"a"}]})"));
  client.read_until("event: ping\ndata: {\"type\": \"ping\"}\n\n");
}

// ---- reasoning and calls

// What Anthropic's client makes of a stream.
json put_together(const std::string& stream) {
  json message;
  std::map<int, std::string> inputs;
  for (const json& event : typed_events_of("\r\n\r\n" + stream)) {
    const std::string type = event["type"];
    if (type == "message_start") message = event["message"];
    if (type == "content_block_start") {
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
    }
    if (type == "content_block_delta") {
      const int index = event["index"];
      json& block = message["content"][static_cast<size_t>(index)];
      for (const auto& [key, value] : event["delta"].items()) {
        if (key == "type") continue;
        if (key == "partial_json") {
          inputs[index] += value.get<std::string>();
        } else {
          block[key] = block[key].get<std::string>() + value.get<std::string>();
        }
      }
    }
    if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    }
  }
  for (const auto& [index, text] : inputs)
    message["content"][static_cast<size_t>(index)]["input"] = json::parse(text);
  return message;
}

class FormatTest : public ::testing::Test {
 protected:
  FormatTest() : choice_(prepared_, prompt_, model_, 0, 0) {
    engine::Event end{.kind = engine::Event::Kind::kFinished};
    Delta none;
    finished_.take(std::move(end), 0, none);
  }

  std::unique_ptr<text::Tokenizer> tokenizer_ =
      text::Tokenizer::create(testing::byte_tokenizer_data()).value();
  ServedModel model_ = [this] {
    ServedModel model;
    model.served_name = "m";
    model.tokenizer = tokenizer_.get();
    return model;
  }();
  Prepared prepared_;
  PreparedPrompt prompt_{.tokens = {1}, .text = "", .max_tokens = 5};
  Choice choice_;
  Choice finished_{prepared_, prompt_, model_, 0, 0};
};

TEST_F(FormatTest, BlocksOfAStreamAreThoseOfTheWhole) {
  const std::vector<Delta> pieces = {{.reasoning = "let me "},
                                     {.reasoning = "see"},
                                     {.text = "I "},
                                     {.text = "look"},
                                     {.calls = {{0, "c1", "ls", "{\"p"}}},
                                     {.calls = {{0, "", "", "ath\":1}"}, {1, "c2", "pwd", ""}}},
                                     {.calls = {{1, "", "", "{}"}}}};
  const Delta all{.text = "I look",
                  .reasoning = "let me see",
                  .calls = {{0, "c1", "ls", R"({"path":1})"}, {1, "c2", "pwd", "{}"}}};
  const Usage usage{.prompt_tokens = 9, .completion_tokens = 4, .cached_tokens = 3};
  MessagesFormat whole(model_, "id", "r7");
  const json message = json::parse(whole.whole({{0, finished_, prompt_, all}}, usage));
  MessagesFormat stream(model_, "id", "r7");
  std::string out;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool last = i + 1 == pieces.size();
    stream.append_delta(out, {0, last ? finished_ : choice_, prompt_, pieces[i]}, usage);
  }
  stream.append_end(out, usage);
  EXPECT_EQ(put_together(out), message);
  EXPECT_EQ(message["content"], json::parse(R"([
    {"type":"thinking","thinking":"let me see","signature":"id"},{"type":"text","text":"I look"},
    {"type":"tool_use","id":"c1","name":"ls","input":{"path":1}},
    {"type":"tool_use","id":"c2","name":"pwd","input":{}}])"));
}

// The input must be an object even when max_tokens cut it off, or the answer would not be JSON.
TEST_F(FormatTest, ArgumentsThatAreNoObjectAreEmpty) {
  for (const char* arguments : {"{\"a\":", "", "5", "[]", " {\"a\":[}"}) {
    MessagesFormat format(model_, "id", "r7");
    const Delta delta{.calls = {{0, "c", "f", arguments}}};
    const json message = json::parse(format.whole({{0, finished_, prompt_, delta}}, {}));
    EXPECT_EQ(message["content"][0]["input"], json::object()) << arguments;
  }
}

}  // namespace
}  // namespace api
