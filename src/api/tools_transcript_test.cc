// Goal: a client of a chat sees the calls and reasoning that the model's text holds, whole and as a
// stream, with the framing that OpenAI's clients expect. Method: a server whose engine plays text a
// byte a token.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "api/testing.h"

namespace api {
namespace {

using nlohmann::json;
using testing::body_of;
using testing::kEnd;
using testing::TestServer;

constexpr const char* kTemplate =
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}"
    "</tool_call>{% endfor %};{% endfor %}<think>{# ... </think> #}";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"get","parameters":{"type":"object"}}}])";
constexpr const char* kAnswer =
    "Need it.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"k\": "
    "\"v\"}}\n"
    "</tool_call>\n<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>";

class ToolTranscript : public ::testing::Test {
 protected:
  explicit ToolTranscript(const std::string& parser = "auto")
      : server_(options(parser), 4096, kTemplate) {}

  static ServerOptions options(const std::string& parser) {
    ServerOptions options = testing::test_options();
    options.tool_call_parser = parser;
    return options;
  }

  void reply(std::string_view text, bool ends = true) {
    server_.engine().reply.clear();
    for (const char c : text) server_.engine().reply.push_back(static_cast<unsigned char>(c));
    if (ends) server_.engine().reply.push_back(kEnd);
  }
  json post(const std::string& fields) {
    return json::parse(body_of(server_.post(
        "/v1/chat/completions",
        R"({"messages":[{"role":"user","content":"q"}],)" + std::string(kTools) + fields + "}")));
  }
  // The message and finish reason that a client puts together of a stream.
  json streamed(const std::string& fields) {
    const std::string body = body_of(server_.post(
        "/v1/chat/completions", R"({"messages":[{"role":"user","content":"q"}],"stream":true,)" +
                                    std::string(kTools) + fields + "}"));
    json message = json::object();
    json reason;
    for (size_t at = 0; at < body.size();) {
      const size_t end = body.find("\n\n", at);
      const std::string event = body.substr(at + 6, end - at - 6);
      at = end + 2;
      if (event == "[DONE]") break;
      const json choice = json::parse(event)["choices"][0];
      add(choice["delta"], message);
      reason = choice["finish_reason"];
    }
    message["finish_reason"] = reason;
    return message;
  }
  static void add(const json& delta, json& message) {
    EXPECT_EQ(delta.contains("role"), message.empty()) << delta;
    for (const auto& [key, value] : delta.items()) {
      if (key == "tool_calls") {
        for (const json& call : value) {
          json& calls = message["tool_calls"];
          const size_t index = call["index"];
          if (index == calls.size()) {
            EXPECT_TRUE(call.contains("id") && call["function"].contains("name")) << call;
            calls.push_back(call);
            calls.back().erase("index");
            continue;
          }
          EXPECT_FALSE(call.contains("id") || call["function"].contains("name")) << call;
          std::string so_far = calls[index]["function"]["arguments"];
          so_far += call["function"]["arguments"];
          calls[index]["function"]["arguments"] = so_far;
        }
      } else if (key == "role" || !message.contains(key) || message[key].is_null()) {
        message[key] = value;
      } else {
        message[key] = message[key].get<std::string>() + value.get<std::string>();
      }
    }
  }
  // Without ids, which must be there and differ.
  static json without_ids(json message) {
    std::set<std::string> ids;
    for (json& call : message["tool_calls"]) {
      EXPECT_TRUE(ids.insert(call["id"]).second);
      EXPECT_EQ(call["type"], "function");
      call.erase("id");
      call.erase("type");
    }
    return message;
  }

  TestServer server_;
};

const json kWanted = json::parse(R"({"role":"assistant","content":"One moment.",
  "reasoning":"Need it.","reasoning_content":"Need it.","tool_calls":[
  {"function":{"name":"get","arguments":"{\"k\": \"v\"}"}},{"function":{"name":"get","arguments":"{}"}}]})");

TEST_F(ToolTranscript, WholeAndStreamedAreOne) {
  reply(kAnswer);
  json choice = post("")["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(without_ids(choice["message"]), kWanted);
  json message = without_ids(streamed(""));
  EXPECT_EQ(message["finish_reason"], "tool_calls");
  message.erase("finish_reason");
  EXPECT_EQ(message, kWanted);
}

TEST_F(ToolTranscript, ContentIsNullWhenThereAreOnlyCalls) {
  reply("</think><tool_call>{\"name\":\"get\",\"arguments\":{}}</tool_call>");
  EXPECT_EQ(post("")["choices"][0]["message"]["content"], nullptr);
  EXPECT_EQ(streamed("")["content"], nullptr);
}

TEST_F(ToolTranscript, ChoiceNoneLeavesTheText) {
  reply("</think><tool_call>{\"name\":\"get\",\"arguments\":{}}</tool_call>");
  const json choice = post(R"(,"tool_choice":"none")")["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["content"],
            "<tool_call>{\"name\":\"get\",\"arguments\":{}}</tool_call>");
}

TEST_F(ToolTranscript, NotParallelEndsBehindTheFirstCall) {
  reply(kAnswer);
  for (const bool stream : {false, true}) {
    const json message = stream ? streamed(R"(,"parallel_tool_calls":false)")
                                : post(R"(,"parallel_tool_calls":false)")["choices"][0]["message"];
    EXPECT_EQ(message["tool_calls"].size(), 1u) << message;
    EXPECT_EQ(message["content"], "One moment.");
  }
  EXPECT_EQ(server_.engine().wait_for_cancelled(2).size(), 2u);
}

TEST_F(ToolTranscript, ANamedToolIsCalledOnce) {
  reply(kAnswer);
  const std::string named = R"(,"tool_choice":{"type":"function","function":{"name":"get"}})";
  const json choice = post(named)["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(streamed(named)["tool_calls"].size(), 1u);
}

TEST_F(ToolTranscript, ANamedToolIsCalledOnceInEveryShape) {
  reply(kAnswer);
  const json message = json::parse(body_of(server_.post(
      "/v1/messages",
      R"({"max_tokens":500,"messages":[{"role":"user","content":"q"}],"tool_choice":{"type":"tool","name":"get"},
      "tools":[{"name":"get","input_schema":{"type":"object"}}]})")));
  const json response = json::parse(body_of(
      server_.post("/v1/responses", R"({"input":"q","tool_choice":{"type":"function","name":"get"},
      "tools":[{"type":"function","name":"get","parameters":{"type":"object"}}]})")));
  const auto count = [](const json& parts, std::string_view type) {
    return std::count_if(parts.begin(), parts.end(),
                         [&](const json& part) { return part["type"] == type; });
  };
  EXPECT_EQ(count(message["content"], "tool_use"), 1) << message;
  EXPECT_EQ(count(message["content"], "text"), 0) << message;
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(count(response["output"], "function_call"), 1) << response;
  EXPECT_EQ(count(response["output"], "message"), 0) << response;
}

// Where the output must be calls, what a cut leaves of one is not text.
TEST_F(ToolTranscript, ACutCallLeavesNoText) {
  const std::string cut =
      "</think><tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n"
      "{\"name\": \"get\", \"argu";
  reply(cut, /*ends=*/false);
  for (const std::string_view choice : {R"("required")", R"("auto")"}) {
    const std::string fields =
        fmt::format(R"(,"tool_choice":{},"max_tokens":{})", choice, cut.size());
    const json whole = post(fields)["choices"][0];
    EXPECT_EQ(whole["message"]["content"].is_null(), choice != R"("auto")") << whole;
    EXPECT_EQ(whole["message"]["tool_calls"].size(), 1u) << whole;
    EXPECT_EQ(whole["finish_reason"], "length");
    EXPECT_EQ(streamed(fields)["content"].is_null(), choice != R"("auto")");
  }
}

TEST_F(ToolTranscript, ACallThatEndsEarly) {
  const std::string part = "</think><tool_call>{\"name\":\"get\",\"arguments\":{\"k\": \"v";
  reply(part, /*ends=*/false);
  const json choice = post(R"(,"max_tokens":)" + std::to_string(part.size()))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"k\": \"v");
  reply(part);
  EXPECT_EQ(post("")["choices"][0]["finish_reason"], "stop") << "no call that a client could make";
}

TEST_F(ToolTranscript, ToolsReachTheTemplate) {
  reply("</think>ok");
  post("");
  const auto submitted = server_.engine().wait_for_submitted(1);
  std::string prompt;
  for (const core::TokenId id : submitted[0].request.prompt) prompt += static_cast<char>(id);
  EXPECT_EQ(
      prompt,
      R"([{"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}])"
      "user:q;<think>");
}

// What models of each family write, sound, damaged and cut off.
struct Recorded {
  const char* parser;
  const char* text;
};
constexpr Recorded kRecorded[] = {
    {"hermes", kAnswer},
    {"hermes", "</think><tool_call>{\"name\":\"get\",\"arguments\":{\"k\":1]} é</tool_call> x "},
    {"hermes", "t</think>\n\n<tool_call>\n{\"name\": \"get\", \"arg"},
    {"hermes", "no end of it <tool_call>{}"},
    {"qwen3_coder",
     "</think>So\n<tool_call>\n<function=get>\n<parameter=k>\nf\xC3\xBCr \"alle\"\n\n</parameter>\n"
     "</function>\n</tool_call>\n<tool_call>\n<function=get>\n</function>\n</tool_call>"},
    {"qwen3_coder", "</think><tool_call>\n<function=get>\n<parameter=k>\nhalf\n"},
    {"qwen3_coder", "</think><tool_call>\n<function=get> and </function>\n</tool_call>"},
    {"llama3_json",
     "</think>{\"name\": \"get\", \"parameters\": {\"k\": \"\xE2\x82\xAC\"}}; "
     "{\"name\": \"get\", \"parameters\": {}}"},
    {"llama3_json", "</think>{\"name\": \"got\", \"parameters\": {}}"},
    {"mistral", "</think>[TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"k\": []}}]"},
    {"mistral", "</think>[TOOL_CALLS]get[ARGS]{\"k\": 1}[TOOL_CALLS]get{"},
    {"mistral", "</think>[TOOL_CALLS]get(1)"},
};

class Replay : public ToolTranscript, public ::testing::WithParamInterface<Recorded> {
 protected:
  Replay() : ToolTranscript(GetParam().parser) {}
};

TEST_P(Replay, StreamedIsWhole) {
  const std::string text = GetParam().text;
  for (const bool ends : {true, false}) {
    reply(text, ends);
    const std::string limit = ends ? "" : ",\"max_tokens\":" + std::to_string(text.size());
    const json choice = post(limit)["choices"][0];
    json whole = without_ids(choice["message"]);
    whole["finish_reason"] = choice["finish_reason"];
    EXPECT_EQ(without_ids(streamed(limit)), whole);
    if (ends) continue;
    EXPECT_EQ(whole["finish_reason"], "length");
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Replay, ::testing::ValuesIn(kRecorded));

TEST(ToolParsers, MistralsIdsHaveNineLettersAndDigits) {
  ServerOptions options = testing::test_options();
  options.tool_call_parser = "mistral";
  TestServer server(options, 4096, kTemplate);
  server.engine().reply.clear();
  for (const char c : std::string_view("</think>[TOOL_CALLS]get{}"))
    server.engine().reply.push_back(static_cast<unsigned char>(c));
  server.engine().reply.push_back(kEnd);
  const json body = json::parse(body_of(
      server.post("/v1/chat/completions",
                  R"({"messages":[{"role":"user","content":"q"}],)" + std::string(kTools) + "}")));
  const std::string id = body["choices"][0]["message"]["tool_calls"][0]["id"];
  EXPECT_EQ(id.size(), 9u);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz"), std::string::npos);
}

TEST(ToolParsers, WithoutAParserToolsAreRefused) {
  ServerOptions options = testing::test_options();
  options.tool_call_parser = "none";
  TestServer server(options, 4096, kTemplate);
  const std::string body = R"({"messages":[{"role":"user","content":"q"}],)" + std::string(kTools);
  const json error = json::parse(body_of(server.post("/v1/chat/completions", body + "}")))["error"];
  EXPECT_EQ(error["code"], "unsupported_parameter");
  EXPECT_EQ(error["param"], "tools");
  EXPECT_THAT(server.post("/v1/chat/completions", body + R"(,"tool_choice":"none"})"),
              ::testing::StartsWith("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace api
