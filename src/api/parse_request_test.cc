// Each field of a request: what it takes, both ends of its range, and the error that names it. Then
// hostile JSON.
#include "api/parse_request.h"

#include <gtest/gtest.h>

#include "api/parse_messages.h"

namespace api {
namespace {

constexpr int32_t kVocab = 100;

std::variant<GenerateRequest, ApiError> parse(Endpoint endpoint, const std::string& body) {
  return parse_request(endpoint, body, kVocab);
}

// `fields` beside the required ones.
std::string completion(const std::string& fields) {
  return R"({"prompt":"p")" + (fields.empty() ? "" : "," + fields) + "}";
}
std::string chat(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"c"}])" + (fields.empty() ? "" : "," + fields) +
         "}";
}

GenerateRequest good(Endpoint endpoint, const std::string& body) {
  auto result = parse(endpoint, body);
  if (const auto* error = std::get_if<ApiError>(&result)) {
    ADD_FAILURE() << body << ": " << error->message;
    return {};
  }
  return std::get<GenerateRequest>(std::move(result));
}
GenerateRequest good(const std::string& fields) {
  return good(Endpoint::kCompletions, completion(fields));
}
GenerateRequest good_chat(const std::string& fields) {
  return good(Endpoint::kChat, chat(fields));
}

void expect_error(Endpoint endpoint, const std::string& body, Problem problem,
                  const std::string& param) {
  const auto result = parse(endpoint, body);
  const auto* error = std::get_if<ApiError>(&result);
  ASSERT_NE(error, nullptr) << body << " was taken";
  EXPECT_EQ(row_of(error->problem).code, std::string(row_of(problem).code))
      << body << ": " << error->message;
  EXPECT_EQ(error->param, param) << body << ": " << error->message;
  EXPECT_NE(error->message.find(param), std::string::npos) << error->message;
}
void bad(const std::string& fields, const std::string& param,
         Problem problem = Problem::kInvalidValue) {
  expect_error(Endpoint::kCompletions, completion(fields), problem, param);
}
void bad_chat(const std::string& fields, const std::string& param,
              Problem problem = Problem::kInvalidValue) {
  expect_error(Endpoint::kChat, chat(fields), problem, param);
}

TEST(ParseRequest, DefaultsAreOpenAis) {
  const GenerateRequest r = good("");
  EXPECT_EQ(r.sampling.temperature, 1.0f);
  EXPECT_EQ(r.sampling.top_p, 1.0f);
  EXPECT_EQ(r.n, 1);
  EXPECT_FALSE(r.max_tokens || r.seed || r.logprobs || r.stream);
  EXPECT_TRUE(r.skip_special_tokens);
}

TEST(ParseRequest, NumbersInTheirRanges) {
  struct Case {
    const char* name;
    const char *low, *high, *under, *over;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"temperature", "0", "100", "-0.1", "100.5"},
           {"top_p", "1e-30", "1", "0", "1.01"},
           {"top_k", "-1", "2147483647", "-2", "2147483648"},
           {"min_p", "0", "1.0", "-0.1", "1.1"},
           {"repetition_penalty", "0.01", "100", "0", "101"},
           {"presence_penalty", "-2", "2", "-2.1", "2.1"},
           {"frequency_penalty", "-2", "2", "-2.1", "2.1"},
           {"max_tokens", "0", "2147483647", "-1", "2147483648"},
           {"min_tokens", "0", "2147483647", "-1", "2147483648"},
           {"n", "1", "128", "0", "129"},
           {"seed", "-9223372036854775808", "9223372036854775807", "-9.3e18",
            "9223372036854775808"},
           {"logprobs", "0", "20", "-1", "21"},
           {"prompt_logprobs", "0", "20", "-1", "21"},
       }) {
    const std::string key = std::string("\"") + c.name + "\":";
    good(key + c.low);
    good(key + c.high);
    good(key + "null");
    bad(key + c.under, c.name);
    bad(key + c.over, c.name);
    bad(key + "\"1\"", c.name);
    bad(key + "true", c.name);
    bad(key + "[1]", c.name);
  }
  EXPECT_EQ(good(R"("n":2.0)").n, 2);
  bad(R"("n":1.5)", "n");
  bad(R"("max_tokens":1e400)", "max_tokens");
  EXPECT_EQ(good(R"("top_k":-1)").sampling.top_k, 0);
  EXPECT_GT(good(R"("top_p":1e-300)").sampling.top_p, 0.0f);
  EXPECT_EQ(good(R"("seed":-1)").seed, -1);
  bad(R"("min_tokens":5,"max_tokens":4)", "min_tokens");
}

TEST(ParseRequest, Flags) {
  for (const char* name : {"echo", "stream", "ignore_eos", "skip_special_tokens",
                           "include_stop_str_in_output", "add_special_tokens"}) {
    const std::string key = std::string("\"") + name + "\":";
    good(key + "true");
    good(key + "false");
    bad(key + "1", name);
    bad(key + "\"true\"", name);
  }
}

TEST(ParseRequest, Prompts) {
  const auto prompt = [](const std::string& value) { return R"({"prompt":)" + value + "}"; };
  EXPECT_EQ(std::get<std::string>(good(Endpoint::kCompletions, prompt(R"("a\u0000b")")).prompts[0]),
            std::string("a\0b", 3));
  EXPECT_EQ(good(Endpoint::kCompletions, prompt("[1,2]")).prompts.size(), 1u);
  EXPECT_EQ(good(Endpoint::kCompletions, prompt("[[1],[2,3]]")).prompts.size(), 2u);
  EXPECT_EQ(good(Endpoint::kCompletions, prompt(R"(["a",[1]])")).prompts.size(), 2u);
  for (const char* value :
       {"1", "true", "{}", "[]", "[100]", "[-1]", "[1.5]", R"([1,"a"])", R"(["a",1])", "[[[1]]]"}) {
    expect_error(Endpoint::kCompletions, prompt(value), Problem::kInvalidValue, "prompt");
  }
  expect_error(Endpoint::kCompletions, "{}", Problem::kMissingParameter, "prompt");
  expect_error(Endpoint::kCompletions, R"({"prompt":null})", Problem::kMissingParameter, "prompt");
  std::string many = "[\"a\"";
  for (int i = 0; i < kChoicesMax - 1; ++i) many += ",\"a\"";
  good(Endpoint::kCompletions, prompt(many + "]"));
  expect_error(Endpoint::kCompletions, prompt(many + ",\"a\"]"), Problem::kInvalidValue, "prompt");
  EXPECT_EQ(good(Endpoint::kCompletions, R"({"n":64,"prompt":["a","b"]})").n, 64);
  expect_error(Endpoint::kCompletions, R"({"n":65,"prompt":["a","b"]})", Problem::kInvalidValue,
               "n");
}

TEST(ParseRequest, Stops) {
  EXPECT_EQ(good(R"("stop":"a")").stop.size(), 1u);
  EXPECT_EQ(good(R"("stop":[])").stop.size(), 0u);
  std::string sixteen = "\"a\"";
  for (int i = 0; i < 15; ++i) sixteen += ",\"a\"";
  EXPECT_EQ(good("\"stop\":[" + sixteen + "]").stop.size(), 16u);
  bad("\"stop\":[" + sixteen + ",\"a\"]", "stop");
  bad(R"("stop":"")", "stop");
  good("\"stop\":\"" + std::string(kStopStringBytesMax, 'a') + "\"");
  bad("\"stop\":\"" + std::string(kStopStringBytesMax + 1, 'a') + "\"", "stop");
  bad(R"("stop":1)", "stop");
  bad(R"("stop":["a",1])", "stop");
  EXPECT_EQ(good(R"("stop_token_ids":[0,99])").sampling.stop_token_ids.size(), 2u);
  std::string ids = "7";
  for (size_t i = 1; i < kStopTokensMax; ++i) ids += ",7";
  good("\"stop_token_ids\":[" + ids + "]");
  bad("\"stop_token_ids\":[" + ids + ",7]", "stop_token_ids");
  bad(R"("stop_token_ids":[100])", "stop_token_ids");
  bad(R"("stop_token_ids":7)", "stop_token_ids");
}

TEST(ParseRequest, LogitBias) {
  const auto bias = good(R"("logit_bias":{"5":-100,"99":1.5})").sampling.logit_bias;
  ASSERT_EQ(bias.size(), 2u);
  EXPECT_EQ(bias[0], (std::pair<core::TokenId, float>(5, -100.0f)));
  for (const char* value : {R"({"100":1})", R"({"-1":1})", R"({"x":1})", R"({"5 ":1})",
                            R"({"5":101})", R"({"5":"a"})", "[]", "3"}) {
    bad(std::string("\"logit_bias\":") + value, "logit_bias");
  }
  const auto biased = [](size_t count) {
    std::string body = R"({"prompt":"p","logit_bias":{"0":1)";
    for (size_t id = 1; id < count; ++id) body += ",\"" + std::to_string(id) + "\":1";
    return parse_request(Endpoint::kCompletions, body + "}}", kLogitBiasMax + 1);
  };
  EXPECT_TRUE(std::holds_alternative<GenerateRequest>(biased(kLogitBiasMax)));
  const auto over = biased(kLogitBiasMax + 1);
  ASSERT_TRUE(std::holds_alternative<ApiError>(over));
  EXPECT_EQ(std::get<ApiError>(over).param, "logit_bias");
}

TEST(ParseRequest, StreamOptions) {
  const GenerateRequest r = good(
      R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true,"more":1})");
  EXPECT_TRUE(r.include_usage && r.continuous_usage_stats);
  bad(R"("stream_options":{"include_usage":true})", "stream_options");
  bad(R"("stream":true,"stream_options":7)", "stream_options");
  bad(R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage");
  bad(R"("stream":true,"prompt_logprobs":1)", "prompt_logprobs", Problem::kUnsupportedParameter);
}

TEST(ParseRequest, ChatFields) {
  EXPECT_EQ(good_chat(R"("max_completion_tokens":7)").max_tokens, 7);
  EXPECT_EQ(good_chat(R"("max_completion_tokens":7,"max_tokens":7)").max_tokens, 7);
  EXPECT_EQ(good_chat(R"("max_completion_tokens":7,"max_tokens":8)").max_tokens, 7);
  bad_chat(R"("max_tokens":0)", "max_tokens");
  EXPECT_EQ(good_chat(R"("logprobs":true)").logprobs, 0);
  EXPECT_EQ(good_chat(R"("logprobs":true,"top_logprobs":20)").logprobs, 20);
  EXPECT_FALSE(good_chat(R"("logprobs":false,"top_logprobs":0)").logprobs);
  bad_chat(R"("logprobs":1)", "logprobs");
  bad_chat(R"("top_logprobs":1)", "top_logprobs");
  bad_chat(R"("logprobs":true,"top_logprobs":21)", "top_logprobs");
  bad_chat(R"("continue_final_message":true,"add_generation_prompt":true)",
           "continue_final_message");
  bad_chat(R"("continue_final_message":true)",
           "continue_final_message");  // the last message is the user's
  bad_chat(R"("chat_template_kwargs":[])", "chat_template_kwargs");
  bad_chat(R"("documents":{})", "documents");
  bad_chat(R"("documents":["text"])", "documents");
  good_chat(
      R"("documents":[{"title":"t","text":"x"}],"chat_template_kwargs":{"enable_thinking":false})");
  std::string nodes = "0";
  for (size_t i = 0; i < 5000; ++i) nodes += ",0";
  bad_chat("\"chat_template_kwargs\":{\"a\":[" + nodes + "]}", "chat_template_kwargs");
}

TEST(ParseRequest, Messages) {
  const auto messages = [](const std::string& value) { return R"({"messages":)" + value + "}"; };
  const auto refuse = [&](const std::string& value, const std::string& param,
                          Problem problem = Problem::kInvalidValue) {
    expect_error(Endpoint::kChat, messages(value), problem, param);
  };
  const GenerateRequest r =
      good(Endpoint::kChat, messages(R"([{"role":"developer","content":"a","name":"n"},
      {"role":"assistant","content":null,"tool_calls":[]},{"role":"tool","content":[{"type":"text","text":"x"},
      {"type":"text","text":"y"}],"tool_call_id":"7","weight":3}])"));
  EXPECT_EQ(r.messages.dump(),
            R"([{"role":"developer","content":"a","name":"n"},{"role":"assistant","content":""},)"
            R"({"role":"tool","content":"x\ny","tool_call_id":"7"}])");
  // An answer that comes back, in parts of other shapes.
  EXPECT_EQ(good(Endpoint::kChat, messages(R"([{"role":"assistant","content":[
      {"type":"output_text","text":"a"},{"type":"refusal","refusal":"b"},{"type":"thinking","thinking":"c"}]},
      {"role":"user","content":[{"type":"input_text","text":"d"}]}])"))
                .messages.dump(),
            R"([{"role":"assistant","content":"a\nb\nc"},{"role":"user","content":"d"}])");
  expect_error(Endpoint::kChat, "{}", Problem::kMissingParameter, "messages");
  refuse("7", "messages");
  refuse("[]", "messages");
  refuse("[7]", "messages[0]");
  refuse(R"([{"content":"a"}])", "messages[0].role", Problem::kMissingParameter);
  refuse(R"([{"role":"user"}])", "messages[0].content", Problem::kMissingParameter);
  refuse(R"([{"role":"king","content":"a"}])", "messages[0].role");
  refuse(R"([{"role":"user","content":7}])", "messages[0].content");
  refuse(R"([{"role":"user","content":"a","content":"b"}])", "messages[0]");
  refuse(R"([{"role":"user","content":["a"]}])", "messages[0].content[0]");
  refuse(R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text");
  refuse(R"([{"role":"assistant","content":[{"type":"refusal","text":"a"}]}])",
         "messages[0].content[0].refusal");
  refuse(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])",
         "messages[0].content[0].type", Problem::kUnsupportedParameter);
}

// Values are counted wherever they stand: many messages, or many parts, calls and arguments of one.
TEST(ParseRequest, ConversationsHaveABound) {
  const auto repeated = [](const std::string& item, size_t count) {
    std::string list;
    for (size_t i = 0; i < count; ++i) list += (i == 0 ? "[" : ",") + item;
    return list + "]";
  };
  const std::string message = R"({"role":"user","content":""})";
  const std::string many = repeated(message, kConversationNodesMax / 3);
  const std::string more = many.substr(0, many.size() - 1) + "," + message + "]";
  const std::string block = R"({"type":"text","text":""})";
  const std::string parts =
      R"([{"role":"user","content":)" + repeated(block, kConversationNodesMax / 3) + "}]";
  const std::string call =
      R"([{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"f",
      "input":{"a":)" +
      repeated("0", kConversationNodesMax) + "}}]}]";
  // Arguments as JSON text become objects, too, but for those of over 4096 values, which stay text.
  const auto asked = [&](size_t calls, size_t values) {
    const std::string one = R"({"type":"function","function":{"name":"f","arguments":"{\"a\":)" +
                            repeated("0", values) + R"(}"}})";
    return R"({"messages":[{"role":"assistant","tool_calls":)" + repeated(one, calls) + "}]}";
  };
  const auto fits = [&](size_t calls, size_t values) {
    const auto result = parse(Endpoint::kChat, asked(calls, values));
    return std::holds_alternative<GenerateRequest>(result);
  };
  const size_t calls = kConversationNodesMax / 4096;  // each has 7 values beside those in its array
  EXPECT_TRUE(fits(calls, 4000));
  EXPECT_FALSE(fits(calls + 3, 4080));
  EXPECT_TRUE(fits(calls + 3, 5000)) << "texts";
  expect_error(Endpoint::kResponses,
               R"({"input":)" +
                   repeated(R"({"type":"function_call","call_id":"i",
      "name":"f","arguments":"{\"a\":)" +
                                repeated("0", 4000) + R"(}"})",
                            calls + 3) +
                   "}",
               Problem::kInvalidValue, "input");
  for (const auto& [endpoint, start, field] :
       {std::tuple(Endpoint::kChat, "{\"messages\":", "messages"),
        std::tuple(Endpoint::kMessages, "{\"max_tokens\":1,\"messages\":", "messages"),
        std::tuple(Endpoint::kResponses, "{\"input\":", "input")}) {
    const auto taken = parse(endpoint, start + many + "}");
    EXPECT_TRUE(std::holds_alternative<GenerateRequest>(taken)) << field;
    for (const std::string& over : {more, parts, call}) {
      const auto refused = parse(endpoint, start + over + "}");
      const auto* error = std::get_if<ApiError>(&refused);
      ASSERT_NE(error, nullptr) << start;
      EXPECT_EQ(error->problem, Problem::kInvalidValue);
      EXPECT_EQ(error->param, field);
      EXPECT_NE(error->message.find("more than 300000 values"), std::string::npos)
          << error->message;
    }
  }
}

TEST(ParseRequest, FeaturesThatDoNotExistAreRefusedByName) {
  for (const char* name :
       {"suffix", "use_beam_search", "guided_regex", "logits_processors", "chat_template",
        "truncate_prompt_tokens", "prompt_embeds", "return_token_ids"}) {
    const std::string key = std::string("\"") + name + "\":";
    for (const char* nothing : {"null", "false", "\"\"", "[]", "{}"}) good(key + nothing);
    for (const char* something : {"true", "\"x\"", "[1]", "{\"a\":1}", "1"}) {
      bad(key + something, name, Problem::kUnsupportedParameter);
    }
  }
  for (const char* name : {"guided_json", "web_search_options"}) {
    good(std::string("\"") + name + "\":null");
    bad(std::string("\"") + name + "\":{}", name, Problem::kUnsupportedParameter);
  }
  for (const char* text : {"null", "[]", R"(["text"])", R"("text")"}) {
    good_chat(std::string(R"("modalities":)") + text);
  }
  for (const char* more : {R"(["text","audio"])", R"(["audio"])", "[1]"}) {
    bad_chat(std::string(R"("modalities":)") + more, "modalities", Problem::kUnsupportedParameter);
  }
  good(R"("best_of":2,"n":2)");
  bad(R"("best_of":2)", "best_of", Problem::kUnsupportedParameter);
  bad_chat(R"("echo":true)", "echo", Problem::kUnsupportedParameter);
}

TEST(ParseRequest, OutputConstraints) {
  using Kind = grammar::Spec::Kind;
  const auto spec = [](const std::string& fields) {
    const GenerateRequest request = good(fields);
    EXPECT_TRUE(request.constraint.has_value()) << fields;
    return request.constraint.value_or(OutputConstraint{}).spec;
  };
  EXPECT_FALSE(good(R"("response_format":{"type":"text"})").constraint);
  EXPECT_FALSE(good(R"("structured_outputs":{"json":null,"json_object":false})").constraint);
  EXPECT_EQ(spec(R"("response_format":{"type":"json_object"})").kind, Kind::kJsonObject);
  EXPECT_EQ(good(R"("response_format":{"type":"json_object"})").constraint->field,
            "response_format");
  grammar::Spec read = spec(
      R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","x":[1]}}})");
  EXPECT_EQ(read.kind, Kind::kJsonSchema);
  EXPECT_EQ(read.text, R"({"type":"object","x":[1]})");
  EXPECT_TRUE(read.closed);
  read = spec(
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":false}})");
  EXPECT_FALSE(read.closed);
  read =
      spec(R"("structured_outputs":{"json":"{\"type\":\"null\"}","disable_any_whitespace":true})");
  EXPECT_EQ(read.text, R"({"type":"null"})");
  EXPECT_FALSE(read.any_whitespace);
  EXPECT_EQ(spec(R"("structured_outputs":{"regex":"a+"})").kind, Kind::kRegex);
  EXPECT_EQ(spec(R"("structured_outputs":{"grammar":"root ::= \"a\""})").kind, Kind::kEbnf);
  EXPECT_EQ(spec(R"("structured_outputs":{"json_object":true})").kind, Kind::kJsonObject);
  EXPECT_EQ(spec(R"("structured_outputs":{"choice":["a","b"]})").choices,
            (std::vector<std::string>{"a", "b"}));

  for (const char* value : {"7", "{}", R"({"type":"xml"})", R"({"type":"json_schema"})",
                            R"({"type":"json_schema","json_schema":{"name":"n"}})",
                            R"({"type":"json_schema","json_schema":7})"}) {
    bad(std::string(R"("response_format":)") + value, "response_format");
  }
  bad(R"("response_format":{"type":"json_schema","json_schema":{"schema":[]}})",
      "response_format.json_schema.schema");
  bad(R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":"yes"}})",
      "response_format.json_schema.strict");
  bad(R"("structured_outputs":7)", "structured_outputs");
  bad(R"("structured_outputs":{"regex":"a","choice":["a"]})", "structured_outputs");
  bad(R"("structured_outputs":{"regex":7})", "structured_outputs.regex");
  bad(R"("structured_outputs":{"choice":"a"})", "structured_outputs.choice");
  bad(R"("structured_outputs":{"choice":[7]})", "structured_outputs.choice");
  bad(R"("structured_outputs":{"sql":"x"})", "structured_outputs.sql");
  bad(R"("structured_outputs":{"whitespace_pattern":" "})", "structured_outputs.whitespace_pattern",
      Problem::kUnsupportedParameter);
  bad(R"("response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"})",
      "structured_outputs");
}

TEST(ParseRequest, UnknownFieldsAreIgnoredAndDoubledOnesRefused) {
  good(R"("store":true,"metadata":{"a":[1,2,{"b":null}]})");
  bad(R"("n":1,"n":2)", "n");
  bad(R"("prompt":"q")", "prompt");
}

TEST(ParseRequest, HostileJson) {
  const auto malformed = [](const std::string& body) {
    expect_error(Endpoint::kCompletions, body, Problem::kMalformedRequest, "");
  };
  for (const char* body : {"", " ", "{", "[]", "null", "7", "\"a\"", "{\"prompt\":\"a\"}x",
                           "{'prompt':1}", "{\"prompt\":nan}", "{\"prompt\":\"\xFF\"}",
                           "{\"prompt\":\"\\ud800\"}", "{\"prompt\":\"a\nb\"}"}) {
    malformed(body);
  }
  malformed(std::string("{\"prompt\":\"a\0b\"}", 16));
  malformed("{\"x\":" + std::string(100'000, '[') + "}");
  const auto nested = [](size_t depth) {  // of which the body itself is one
    return "\"x\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']');
  };
  malformed(completion(nested(kJsonDepthMax + 1)));
  good(nested(kJsonDepthMax));
  good(R"("x":123456789012345678)");
  // Valid, whatever a number of the machine holds: ignored, or out of the field's range.
  good(R"("x":)" + std::string(400, '9'));
  good(R"("x":[18446744073709551616,-1e400,{"y":1e-999}])");
  bad(R"("max_tokens":1000000000000000000000000000000)", "max_tokens");
  bad(R"("seed":18446744073709551616)", "seed");
  bad(R"("temperature":1e400)", "temperature");
  malformed(R"({"prompt":"a","x":18446744073709551616,"y":01})");
}

TEST(ParseRequest, Detokenize) {
  EXPECT_EQ(good(Endpoint::kDetokenize, R"({"tokens":[]})").tokens.size(), 0u);
  expect_error(Endpoint::kDetokenize, "{}", Problem::kMissingParameter, "tokens");
  expect_error(Endpoint::kDetokenize, R"({"tokens":[100]})", Problem::kInvalidValue, "tokens");
  expect_error(Endpoint::kTokenize, "{}", Problem::kMissingParameter, "prompt");
}

}  // namespace
}  // namespace api
