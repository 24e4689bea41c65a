// Transcripts: bytes of requests against a server whose engine follows a script, and what must come
// back. Ids and times are checked for their form and then taken out; everything else is compared as
// JSON or byte by byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/testing.h"

namespace api {
namespace {

using nlohmann::json;
using testing::body_of;
using testing::FakeEngine;
using testing::kEnd;
using testing::TestServer;

json parsed(const std::string& answer) {
  json value = json::parse(body_of(answer), nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(value.is_discarded()) << answer;
  return value;
}

// The data of each event; checks the framing.
std::vector<std::string> events_of(const std::string& answer) {
  std::vector<std::string> events;
  std::string body = body_of(answer);
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    if (end == std::string::npos || !body.starts_with("data: ")) {
      ADD_FAILURE() << "not an event: " << body;
      break;
    }
    events.push_back(body.substr(6, end - 6));
    body.erase(0, end + 2);
  }
  return events;
}

// Events of a stream without the last, which must be [DONE], as JSON; id, created and model are
// checked and taken out.
std::vector<json> chunks_of(const std::string& answer, const std::string& id_prefix) {
  std::vector<std::string> events = events_of(answer);
  std::vector<json> chunks;
  EXPECT_FALSE(events.empty()) << answer;
  if (events.empty()) return chunks;
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  std::string id;
  for (const std::string& event : events) {
    json chunk = json::parse(event);
    if (chunk.contains("id")) {
      const std::string this_id = chunk["id"];
      EXPECT_TRUE(this_id.starts_with(id_prefix));
      if (id.empty()) id = this_id;
      EXPECT_EQ(this_id, id) << "one id for all chunks";
      EXPECT_EQ(chunk["model"], "bytes");
      EXPECT_GT(chunk["created"], 1'600'000'000);
      chunk.erase("id");
      chunk.erase("model");
      chunk.erase("created");
    }
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

TEST(Completions, WholeAnswer) {
  TestServer server;
  server.engine().cached_tokens = 2;
  const std::string answer =
      server.post("/v1/completions", R"({"model":"bytes","prompt":"abc","seed":7})");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  json body = parsed(answer);
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("cmpl-"));
  body.erase("id");
  body.erase("created");
  EXPECT_EQ(body, json::parse(R"({"object":"text_completion","model":"bytes",
    "choices":[{"index":0,"text":"hi","logprobs":null,"finish_reason":"stop","stop_reason":null}],
    "usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":2}}})"));
  const auto submitted = server.engine().wait_for_submitted(1);
  EXPECT_EQ(submitted[0].request.prompt, (std::vector<core::TokenId>{'a', 'b', 'c'}));
  EXPECT_EQ(submitted[0].request.sampling.max_tokens, 16);
  EXPECT_EQ(submitted[0].request.sampling.seed, 7u);
}

TEST(Completions, Stream) {
  TestServer server;
  const std::string answer =
      server.post("/v1/completions",
                  R"({"prompt":"abc","stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_NE(answer.find("Content-Type: text/event-stream; charset=utf-8\r\n"), std::string::npos);
  EXPECT_NE(answer.find("Cache-Control: no-cache\r\n"), std::string::npos);
  EXPECT_NE(answer.find("X-Accel-Buffering: no\r\n"), std::string::npos);
  const std::vector<json> chunks = chunks_of(answer, "cmpl-");
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(chunks[0], json::parse(R"({"object":"text_completion","usage":null,
    "choices":[{"index":0,"text":"h","logprobs":null,"finish_reason":null}]})"));
  EXPECT_EQ(chunks[1]["choices"][0]["text"], "i");
  EXPECT_EQ(chunks[2], json::parse(R"({"object":"text_completion","usage":null,
    "choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null}]})"));
  EXPECT_EQ(chunks[3], json::parse(R"({"object":"text_completion","choices":[],
    "usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":0}}})"));
}

TEST(Completions, LastTokenTravelsWithItsFinishReason) {
  TestServer server;
  const auto chunks = chunks_of(
      server.post("/v1/completions", R"({"prompt":"abc","stream":true,"max_tokens":2})"), "cmpl-");
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "h");
  EXPECT_EQ(chunks[1]["choices"][0]["text"], "i");
  EXPECT_EQ(chunks[1]["choices"][0]["finish_reason"], "length");
  EXPECT_FALSE(chunks[0].contains("usage"));
}

TEST(Completions, ContinuousUsage) {
  TestServer server;
  const auto chunks =
      chunks_of(server.post("/v1/completions", R"({"prompt":"abc","stream":true,"max_tokens":2,
      "stream_options":{"include_usage":true,"continuous_usage_stats":true}})"),
                "cmpl-");
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(chunks[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(chunks[1]["usage"]["completion_tokens"], 2);
  EXPECT_EQ(chunks[2]["choices"], json::array());
}

TEST(Completions, ListsOfPromptsTimesN) {
  TestServer server;
  server.engine().cached_tokens = 1;
  const json body = parsed(
      server.post("/v1/completions", R"({"prompt":["ab","c"],"n":2,"seed":5,"max_tokens":1})"));
  ASSERT_EQ(body["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(body["choices"][i]["index"], i);
  EXPECT_EQ(body["usage"], json::parse(R"({"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,
    "prompt_tokens_details":{"cached_tokens":2}})"));
  const auto submitted = server.engine().wait_for_submitted(4);
  EXPECT_EQ(submitted[1].request.sampling.seed, 6u);
  EXPECT_EQ(submitted[2].request.sampling.seed, 5u);
  EXPECT_EQ(submitted[2].request.prompt, (std::vector<core::TokenId>{'c'}));
}

TEST(Completions, PromptsOfTokenIds) {
  TestServer server;
  parsed(server.post("/v1/completions", R"({"prompt":[1,2,3]})"));
  parsed(server.post("/v1/completions", R"({"prompt":[[4],[5,6]]})"));
  const auto submitted = server.engine().wait_for_submitted(3);
  EXPECT_EQ(submitted[0].request.prompt, (std::vector<core::TokenId>{1, 2, 3}));
  EXPECT_EQ(submitted[2].request.prompt, (std::vector<core::TokenId>{5, 6}));
}

TEST(Completions, StopStringAcrossTokensCancelsTheRest) {
  TestServer server;
  server.engine().reply = {'x', 'S', 'T', 'O', 'P', 'y', 'z', kEnd};
  const json body = parsed(server.post("/v1/completions", R"({"prompt":"a","stop":["STOP"]})"));
  EXPECT_EQ(body["choices"][0]["text"], "x");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "STOP");
  EXPECT_EQ(body["usage"]["completion_tokens"], 5);
  EXPECT_EQ(server.engine().wait_for_cancelled(1).size(), 1u);
  const json kept = parsed(server.post(
      "/v1/completions", R"({"prompt":"a","stop":"TO","include_stop_str_in_output":true})"));
  EXPECT_EQ(kept["choices"][0]["text"], "xSTO");
}

TEST(Completions, StopStringInAStreamIsNeverSent) {
  TestServer server;
  server.engine().reply = {'x', 'S', 'T', 'A', 'S', 'T', 'O', 'P', 'y'};
  const auto chunks = chunks_of(
      server.post("/v1/completions", R"({"prompt":"a","stream":true,"stop":"STOP"})"), "cmpl-");
  std::string text;
  for (const json& chunk : chunks) text += chunk["choices"][0]["text"];
  EXPECT_EQ(text, "xSTA");
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "stop");
}

TEST(Completions, StopTokenIsReportedAndItsTextLeftOut) {
  TestServer server;
  server.engine().reply = {'x', 'q', 'y'};
  const json body =
      parsed(server.post("/v1/completions", R"({"prompt":"a","stop_token_ids":[113]})"));
  EXPECT_EQ(body["choices"][0]["text"], "x");
  EXPECT_EQ(body["choices"][0]["stop_reason"], 113);
  EXPECT_EQ(body["usage"]["completion_tokens"], 2);
}

TEST(Completions, NeverHalfACharacter) {
  TestServer server;
  server.engine().reply = {0xE2, 0x82, 0xAC, 0xE2, 0x82};
  const auto chunks = chunks_of(
      server.post("/v1/completions", R"({"prompt":"a","stream":true,"max_tokens":5})"), "cmpl-");
  std::string text;
  for (const json& chunk : chunks) text += chunk["choices"][0]["text"];
  EXPECT_EQ(text, "\u20AC\uFFFD");
}

TEST(Completions, Logprobs) {
  TestServer server;
  server.engine().reply = {'h', 0xE2, 0x82, 0xAC, 'A'};
  const json body =
      parsed(server.post("/v1/completions", R"({"prompt":"a","logprobs":1,"max_tokens":5})"));
  EXPECT_EQ(body["choices"][0]["logprobs"], json::parse(R"({
    "tokens":["h","bytes:\\xe2","bytes:\\x82","bytes:\\xac","A"],
    "token_logprobs":[-0.25,-0.25,-0.25,-0.25,-0.25],
    "top_logprobs":[{"A":-0.5,"h":-0.25},{"A":-0.5,"bytes:\\xe2":-0.25},{"A":-0.5,"bytes:\\x82":-0.25},
                    {"A":-0.5,"bytes:\\xac":-0.25},{"A":-0.5}],
    "text_offset":[0,1,1,1,2]})"));
}

TEST(Completions, EchoWithPromptLogprobs) {
  TestServer server;
  const json body = parsed(server.post(
      "/v1/completions", R"({"prompt":"abc","echo":true,"logprobs":0,"max_tokens":1})"));
  EXPECT_EQ(body["choices"][0]["text"], "abch");
  EXPECT_EQ(body["choices"][0]["logprobs"], json::parse(R"({"tokens":["a","b","c","h"],
    "token_logprobs":[null,-0.25,-0.25,-0.25],"top_logprobs":[null,{"b":-0.25},{"c":-0.25},{"h":-0.25}],
    "text_offset":[0,1,2,3]})"));
  const json scored = parsed(server.post(
      "/v1/completions", R"({"prompt":"abc","echo":true,"logprobs":1,"max_tokens":0})"));
  EXPECT_EQ(scored["choices"][0]["text"], "abc");
  EXPECT_EQ(scored["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
}

TEST(Completions, EchoStreamsThePromptWithTheFirstToken) {
  TestServer server;
  const auto chunks =
      chunks_of(server.post("/v1/completions",
                            R"({"prompt":"abc","echo":true,"stream":true,"max_tokens":2})"),
                "cmpl-");
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "abch");
  EXPECT_EQ(chunks[1]["choices"][0]["text"], "i");
}

TEST(Completions, PromptLogprobsByTokenId) {
  TestServer server;
  const json body = parsed(
      server.post("/v1/completions", R"({"prompt":"ab","prompt_logprobs":1,"max_tokens":1})"));
  EXPECT_EQ(body["choices"][0]["prompt_logprobs"], json::parse(R"([null,
    {"65":{"logprob":-0.5,"rank":1,"decoded_token":"A"},"98":{"logprob":-0.25,"rank":1,"decoded_token":"b"}}])"));
}

// A chat's choices share a prompt, so they stand beside `choices`, as vLLM has them.
TEST(Chat, PromptLogprobsBesideTheChoices) {
  TestServer server;
  const json body = parsed(server.post("/v1/chat/completions", R"({"n":2,"prompt_logprobs":0,
      "max_tokens":1,"messages":[{"role":"user","content":"a"}]})"));
  ASSERT_EQ(body["choices"].size(), 2u);
  for (const json& choice : body["choices"]) EXPECT_FALSE(choice.contains("prompt_logprobs"));
  const auto submitted = server.engine().wait_for_submitted(2);
  EXPECT_EQ(server.engine().joined(), (std::vector<bool>{false, true})) << "one entry for both";
  ASSERT_EQ(body["prompt_logprobs"].size(), submitted[0].request.prompt.size());
  EXPECT_EQ(body["prompt_logprobs"][0], nullptr);
  EXPECT_TRUE(body["prompt_logprobs"][1].is_object());
}

TEST(Chat, WholeAnswer) {
  TestServer server;
  json body = parsed(server.post("/v1/chat/completions", R"({"model":"bytes","messages":[
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"max_completion_tokens":9})"));
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"],
            json::parse(R"([{"index":0,"message":{"role":"assistant","content":"hi"},
    "logprobs":null,"finish_reason":"stop","stop_reason":null}])"));
  const auto submitted = server.engine().wait_for_submitted(1);
  EXPECT_EQ(submitted[0].request.sampling.max_tokens, 9);
}

TEST(Chat, StreamHasTheRoleWithTheFirstToken) {
  TestServer server;
  const auto chunks =
      chunks_of(server.post("/v1/chat/completions",
                            R"({"messages":[{"role":"user","content":"a"}],"stream":true})"),
                "chatcmpl-");
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(chunks[0], json::parse(R"({"object":"chat.completion.chunk","choices":[{"index":0,
    "delta":{"role":"assistant","content":"h"},"logprobs":null,"finish_reason":null}]})"));
  EXPECT_EQ(chunks[1]["choices"][0]["delta"], json::parse(R"({"content":"i"})"));
  EXPECT_EQ(chunks[2]["choices"][0]["finish_reason"], "stop");
}

TEST(Chat, NoChunkIsSentBeforeTheFirstToken) {
  ServerOptions options = testing::test_options();
  options.ping_interval = std::chrono::milliseconds(20);
  TestServer server(options);
  server.engine().hold = true;
  http::testing::RawClient client(server.port());
  client.send(TestServer::post_bytes(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"a"}],"stream":true,"max_tokens":1})"));
  const std::string before = client.read_until(": ping\n\n\r\n");
  EXPECT_EQ(before.find("data:"), std::string::npos);
  const auto running = server.engine().wait_for_submitted(1)[0];
  FakeEngine::push_start(running.request, *running.events, 0);
  FakeEngine::push_token(running.request, *running.events, 'z');
  FakeEngine::push_finish(*running.events, core::FinishReason::kLength);
  std::string answer = before + client.read_all();
  for (size_t at; (at = answer.find("8\r\n: ping\n\n\r\n")) != std::string::npos;)
    answer.erase(at, 13);
  const auto chunks = chunks_of(answer, "chatcmpl-");
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], json::parse(R"({"role":"assistant","content":"z"})"));
}

TEST(Chat, MaxTokensDefaultsToTheRestOfTheContext) {
  TestServer server;
  parsed(server.post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})"));
  const auto submitted = server.engine().wait_for_submitted(1);
  EXPECT_EQ(submitted[0].request.sampling.max_tokens +
                static_cast<int>(submitted[0].request.prompt.size()),
            testing::kContext);
}

TEST(Chat, Logprobs) {
  TestServer server;
  const json body = parsed(server.post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":1,"max_tokens":1})"));
  EXPECT_EQ(body["choices"][0]["logprobs"],
            json::parse(R"({"content":[{"token":"h","logprob":-0.25,"bytes":[104],
    "top_logprobs":[{"token":"A","logprob":-0.5,"bytes":[65]}]}]})"));
}

TEST(Streams, EngineErrorIsAnEventThenDone) {
  TestServer server;
  server.engine().reply = {'x'};
  server.engine().fails = "the step failed";
  const auto events = events_of(server.post("/v1/completions", R"({"prompt":"a","stream":true})"));
  ASSERT_EQ(events.size(), 3u);
  const std::string message = json::parse(events[1])["error"]["message"];
  EXPECT_EQ(message.find("the step failed"), std::string::npos);  // it is for the log
  EXPECT_EQ(json::parse(events[1])["error"]["code"], "internal_error");
  EXPECT_EQ(events[2], "[DONE]");
  EXPECT_TRUE(server.post("/v1/completions", R"({"prompt":"a"})").starts_with("HTTP/1.1 500"));
}

// Before the first token the head has not gone out, so a failure still has its status.
TEST(Streams, FailureBeforeTheFirstTokenHasItsStatus) {
  TestServer server;
  server.engine().reply = {};
  server.engine().fails = "the step failed";
  for (const auto& [path, body] : {std::pair("/v1/completions", R"({"prompt":"a","stream":true})"),
                                   std::pair("/v1/responses", R"({"input":"a","stream":true})")}) {
    const std::string answer = server.post(path, body);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 500")) << answer;
    EXPECT_EQ(parsed(answer)["error"]["code"], "internal_error");
  }
}

// Once a ping has gone out it cannot: the failure is an event.
TEST(Streams, FailureBehindAPingIsAnEvent) {
  ServerOptions options = testing::test_options();
  options.ping_interval = std::chrono::milliseconds(20);
  TestServer server(options);
  server.engine().hold = true;
  http::testing::RawClient client(server.port());
  client.send(TestServer::post_bytes("/v1/completions", R"({"prompt":"a","stream":true})"));
  client.read_until(": ping\n\n");
  const auto running = server.engine().wait_for_submitted(1)[0];
  FakeEngine::push_start(running.request, *running.events, 0);
  FakeEngine::push_finish(*running.events, core::FinishReason::kError, {}, "the step failed");
  const std::string rest = client.read_all();
  EXPECT_NE(rest.find("\"internal_error\""), std::string::npos);
  EXPECT_NE(rest.find("data: [DONE]"), std::string::npos);
}

// HTTP/1.0 knows no chunks: the stream is as it is, and its end is that of the connection.
TEST(Streams, Http10IsNotChunked) {
  TestServer server;
  const std::string body = R"({"prompt":"a","stream":true})";
  const std::string answer = server.exchange(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_TRUE(answer.starts_with("HTTP/1.0 200")) << answer;
  EXPECT_EQ(answer.find("Transfer-Encoding"), std::string::npos);
  EXPECT_NE(answer.find("Connection: close\r\n"), std::string::npos);
  EXPECT_EQ(answer.find("\r\n\r\ndata: {"), answer.find("\r\n\r\n"));
  EXPECT_TRUE(answer.ends_with("data: [DONE]\n\n"));
}

TEST(Streams, LeavingCancelsWhileNoTokenIsDue) {
  TestServer server;
  server.engine().hold = true;
  size_t sequences = 0;
  for (const char* body : {R"({"prompt":"a","n":2,"stream":true})", R"({"prompt":"a","n":2})"}) {
    sequences += 2;
    http::testing::RawClient client(server.port());
    client.send(TestServer::post_bytes("/v1/completions", body));
    server.engine().wait_for_submitted(sequences);
    client.disconnect();
    EXPECT_EQ(server.engine().wait_for_cancelled(sequences).size(), sequences);
  }
}

TEST(Streams, PingsWhileThereIsNothingToSay) {
  ServerOptions options = testing::test_options();
  options.ping_interval = std::chrono::milliseconds(20);
  TestServer server(options);
  server.engine().hold = true;
  http::testing::RawClient client(server.port());
  client.send(TestServer::post_bytes("/v1/completions", R"({"prompt":"a","stream":true})"));
  client.read_until(": ping\n\n");
  const auto running = server.engine().wait_for_submitted(1)[0];
  FakeEngine::push_start(running.request, *running.events, 0);
  FakeEngine::push_finish(*running.events, core::FinishReason::kAbort);
  EXPECT_NE(client.read_all().find("\"finish_reason\":\"abort\""), std::string::npos);
}

TEST(Tokenize, ThereAndBack) {
  TestServer server;
  EXPECT_EQ(parsed(server.post("/tokenize",
                               R"({"model":"bytes","prompt":"a\u20ac","return_token_strs":true})")),
            json::parse(R"({"count":4,"max_model_len":200,"tokens":[97,226,130,172],
                            "token_strs":["a","\ufffd","\ufffd","\ufffd"]})"));
  EXPECT_EQ(parsed(server.post("/detokenize", R"({"tokens":[97,226,130,172]})")),
            json::parse(R"({"prompt":"a\u20ac"})"));
  EXPECT_GT(
      parsed(server.post("/tokenize", R"({"messages":[{"role":"user","content":"a"}]})"))["count"],
      3);
}

// What is rendered is what the engine gets.
TEST(Render, TokensAndSamplingOfTheRequest) {
  TestServer server;
  const std::string chat =
      R"({"messages":[{"role":"user","content":"a"}],"temperature":0.1,"max_tokens":7,"seed":3})";
  const json one = parsed(server.post("/v1/chat/completions/render", chat));
  EXPECT_TRUE(one["request_id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(one["model"], "bytes");
  EXPECT_EQ(one["sampling_params"]["temperature"], 0.1);
  EXPECT_EQ(one["sampling_params"]["max_tokens"], 7);
  EXPECT_EQ(one["sampling_params"]["seed"], 3);
  const std::string many = R"({"prompt":["ab",[1,2]],"stream":true,"cache_salt":"s"})";
  const json two = parsed(server.post("/v1/completions/render", many));
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1]["token_ids"], json({1, 2}));
  EXPECT_EQ(two[1]["stream"], true);
  EXPECT_EQ(two[1]["cache_salt"], "s");
  EXPECT_EQ(server.engine().submitted_count(), 0u);
  server.post("/v1/chat/completions", chat);
  server.post("/v1/completions", many);
  const auto submitted = server.engine().wait_for_submitted(3);
  ASSERT_EQ(submitted.size(), 3u);
  EXPECT_EQ(one["token_ids"], json(submitted[0].request.prompt));
  EXPECT_EQ(two[0]["token_ids"], json(submitted[1].request.prompt));
  EXPECT_EQ(two[0]["sampling_params"]["max_tokens"], submitted[1].request.sampling.max_tokens);
  EXPECT_EQ(parsed(server.post("/v1/chat/completions/render", "{}"))["error"]["param"], "messages");
}

TEST(Paths, ModelsVersionAndMetrics) {
  TestServer server;
  json models = parsed(server.get("/v1/models"));
  for (json& card : models["data"]) card.erase("created");
  EXPECT_EQ(
      models,
      json::parse(R"({"object":"list","data":[{"id":"bytes","object":"model","owned_by":"spillway",
    "root":"bytes","parent":null,"max_model_len":200,"meta":{"n_vocab":260}},
    {"id":"alias","object":"model","owned_by":"spillway",
    "root":"bytes","parent":null,"max_model_len":200,"meta":{"n_vocab":260}}]})"));
  EXPECT_EQ(parsed(server.post("/v1/completions", R"({"model":"alias","prompt":"a"})"))["model"],
            "bytes");
  for (const auto& [path, at] : {std::pair{"/v1/models/bytes", 0}, {"/v1/models/%61lias", 1}}) {
    json card = parsed(server.get(path));
    card.erase("created");
    EXPECT_EQ(card, models["data"][at]) << path;
  }
  for (const char* path :
       {"/v1/models/other", "/v1/models/bytes/", "/v1/models/%", "/v1/models/%-0", "/v1/models/%00",
        "/v1/models/%ff", "/v1/models/bytes%2"}) {
    const std::string answer = server.get(path);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 404")) << path;
    EXPECT_EQ(parsed(answer)["error"]["code"], "model_not_found") << path;
  }
  EXPECT_EQ(parsed(server.get("/v1/models/"))["error"]["code"], "not_found");
  EXPECT_EQ(parsed(server.get("/version"))["version"], "0.1.0");
  parsed(server.post("/v1/completions", R"({"prompt":"a"})"));
  const std::string metrics = server.get("/metrics");
  EXPECT_NE(metrics.find("Content-Type: text/plain; version=0.0.4"), std::string::npos);
  EXPECT_NE(metrics.find("vllm:num_requests_running{engine=\"0\",model_name=\"bytes\"} 1"),
            std::string::npos);
  EXPECT_NE(metrics.find("finished_reason=\"stop\"} 2"), std::string::npos);
  EXPECT_NE(metrics.find("handler=\"/v1/completions\",status=\"200\"} 2"), std::string::npos);
}

TEST(Paths, PrefixCacheCanBeReset) {
  TestServer server;
  EXPECT_EQ(parsed(server.post("/reset_prefix_cache", "")), json::object());
  EXPECT_EQ(server.engine().cache_resets, 1);
}

TEST(Paths, RequestIdIsEchoedOrMade) {
  TestServer server;
  const std::string given =
      server.post("/v1/completions", R"({"prompt":"a"})", "X-Request-Id: my-id.7\r\n");
  EXPECT_NE(given.find("x-request-id: my-id.7\r\n"), std::string::npos);
  const std::string bad =
      server.post("/v1/completions", R"({"prompt":"a"})", "X-Request-Id: a b\r\n");
  EXPECT_EQ(bad.find("x-request-id: a b"), std::string::npos);
  EXPECT_NE(bad.find("x-request-id: "), std::string::npos);
}

TEST(Paths, ApiKey) {
  ServerOptions options = testing::test_options();
  options.access.api_keys = {"secret"};
  TestServer server(options);
  for (const char* open : {"/health", "/ready", "/health/ready", "/v2/health/ready", "/metrics"}) {
    EXPECT_TRUE(server.get(open).starts_with("HTTP/1.1 200")) << open;
  }
  EXPECT_TRUE(server.get("/v1/models").starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(server.get("/v1/models/bytes").starts_with("HTTP/1.1 401"));
  const std::string body = R"({"prompt":"a"})";
  EXPECT_TRUE(server.post("/v1/completions", body, "Authorization: Bearer wrong!\r\n")
                  .starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(server.post("/v1/completions", body, "Authorization: Bearer secre\r\n")
                  .starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(server.post("/v1/completions", body, "authorization: bearer secret\r\n")
                  .starts_with("HTTP/1.1 200"));
}

// Each row of the table of errors that HTTP can reach, except those that other tests here show
// (401, 503, 500).
TEST(Paths, ErrorsOverHttp) {
  TestServer server;
  const std::string path = "/v1/completions";
  const auto expect = [&](const std::string& answer, int status, const char* code,
                          const char* param) {
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + std::to_string(status))) << answer;
    const json error = parsed(answer)["error"];
    EXPECT_EQ(error["code"], code) << answer;
    EXPECT_EQ(error["param"], param == nullptr ? json() : json(param)) << answer;
    EXPECT_NE(answer.find("\r\nx-request-id: "), std::string::npos) << answer;
    return error;
  };
  expect(server.post(path, R"({"prompt":"a","top_p":2})"), 400, "invalid_value", "top_p");
  expect(server.post(path, "{}"), 400, "missing_required_parameter", "prompt");
  expect(server.post(path, R"({"prompt":"a","suffix":"b"})"), 400, "unsupported_parameter",
         "suffix");
  expect(server.post(path, "{"), 400, "malformed_request", nullptr);
  expect(server.exchange("BAD\r\n\r\n"), 400, "malformed_request", nullptr);
  expect(server.post(path, R"({"prompt":"a","model":"other"})"), 404, "model_not_found", "model");
  expect(server.get("/nowhere"), 404, "not_found", nullptr);
  expect(server.get(path), 405, "method_not_allowed", nullptr);
  expect(server.post(path, std::string(100'001, ' ')), 413, "request_too_large", nullptr);
  expect(server.post(path, "{}", "x: " + std::string(5000, 'y') + "\r\n"), 431, "header_too_large",
         nullptr);
}

TEST(Paths, ConnectionOverTheLimitIsToldSo) {
  ServerOptions options = testing::test_options();
  options.limits.connections_max = 1;
  TestServer server(options);
  http::testing::RawClient holds(server.port());
  holds.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  holds.read_response();
  EXPECT_EQ(parsed(server.exchange(""))["error"]["code"], "too_many_connections");
}

TEST(Paths, ContextLengthIsCheckedBeforeAnyWork) {
  TestServer server;
  const auto refused = [&](const char* path, const std::string& body) {
    const std::string answer = server.post(path, body);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << answer;
    const json error = parsed(answer)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_NE(error["message"].get<std::string>().find("maximum context length is 200 tokens"),
              std::string::npos);
    EXPECT_EQ(error["n_ctx"], 200);
    return error;
  };
  const std::string long_text(200, 'a');
  EXPECT_EQ(refused("/v1/completions", R"({"prompt":")" + long_text + "\"}")["n_prompt_tokens"],
            200);
  EXPECT_EQ(refused("/v1/completions", R"({"prompt":"a","max_tokens":200})")["param"], "prompt");
  EXPECT_EQ(refused("/v1/chat/completions",
                    R"({"messages":[{"role":"user","content":")" + long_text + "\"}]}")["param"],
            "messages");
  // Both sides of the limit: exactly full is taken, and a default max_tokens shrinks to what is
  // left.
  parsed(server.post("/v1/completions", R"({"prompt":"a","max_tokens":199})"));
  parsed(server.post("/v1/completions", R"({"prompt":")" + long_text.substr(1) + "\"}"));
  const auto submitted = server.engine().wait_for_submitted(2);
  ASSERT_EQ(submitted.size(), 2u);
  EXPECT_EQ(submitted[0].request.sampling.max_tokens, 199);
  EXPECT_EQ(submitted[1].request.sampling.max_tokens, 1);
}

TEST(Paths, FullInboxIs429AndKeepsNothing) {
  TestServer server;
  server.engine().hold = true;
  server.engine().refusal = {base::Code::kOverloaded, "1024 requests wait"};
  server.engine().refuse_after = 1;
  const std::string answer = server.post("/v1/completions", R"({"prompt":"a","n":3})");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 429")) << answer;
  EXPECT_NE(answer.find("Retry-After: 1\r\n"), std::string::npos);
  EXPECT_NE(answer.find("\"queue_full\""), std::string::npos);
  EXPECT_EQ(server.engine().wait_for_cancelled(1)[0],
            server.engine().wait_for_submitted(1)[0].request.id);
}

TEST(Life, LoadingAnswers503ButIsAlive) {
  ServerOptions options = testing::test_options();
  Server server(options);
  ASSERT_TRUE(server.listen().ok());
  std::promise<void> may_load;
  std::thread thread([&] {
    const auto result = server.run([&]() -> base::Result<Backend> {
      may_load.get_future().wait();
      return base::error(base::Code::kNotFound, "no such model");
    });
    EXPECT_EQ(result.error().message, "no such model");
  });
  const auto ask = [&](const std::string& bytes) {
    http::testing::RawClient client(server.port());
    client.send(bytes);
    return client.read_response();
  };
  EXPECT_TRUE(ask("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 200"));
  for (const char* path : {"/ready", "/v1/models", "/metrics"}) {
    const std::string answer =
        ask(std::string("GET ") + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 503")) << path;
    EXPECT_NE(answer.find("Retry-After: 1\r\n"), std::string::npos);
    EXPECT_NE(answer.find("\"loading\""), std::string::npos);
  }
  EXPECT_TRUE(ask(TestServer::post_bytes("/v1/completions", R"({"prompt":"a"})"))
                  .starts_with("HTTP/1.1 503"));
  may_load.set_value();
  thread.join();
}

TEST(Life, AStalledEngineTurnsHealthTo503AndIsGivenUpLater) {
  ServerOptions options = testing::test_options();
  options.stall_timeout = std::chrono::milliseconds(20);
  options.stall_grace = std::chrono::hours(1);
  TestServer server(options);
  EXPECT_TRUE(server.get("/health").starts_with("HTTP/1.1 200"));
  const auto wait_for = [&](const char* status) {
    std::string health;
    for (int i = 0; i < 2000 && !health.starts_with(status); ++i) health = server.get("/health");
    EXPECT_TRUE(health.starts_with(status)) << health;
    return health;
  };
  base::set_log_level("off").value();
  server.engine().dead = true;
  EXPECT_NE(wait_for("HTTP/1.1 503").find("engine_dead"), std::string::npos);
  EXPECT_NE(server.post("/v1/completions", R"({"prompt":"a"})").find("engine_dead"),
            std::string::npos);
  EXPECT_NE(server.get("/ready").find("engine_dead"), std::string::npos);
  server.engine().dead = false;
  wait_for("HTTP/1.1 200");
}

TEST(Life, AnEngineThatStaysStalledEndsTheProcess) {
  std::promise<int> ended;
  ServerOptions options = testing::test_options();
  options.stall_timeout = options.stall_grace = std::chrono::milliseconds(20);
  options.end_process = [&](int status) { ended.set_value(status); };
  TestServer server(options);
  base::set_log_level("off").value();
  server.engine().dead = true;
  auto status = ended.get_future();
  ASSERT_EQ(status.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(status.get(), kStalledStatus);
}

TEST(Life, DuringTheDrainDelayRequestsAreTakenThoughNotReady) {
  ServerOptions options = testing::test_options();
  options.drain_delay = std::chrono::hours(1);
  TestServer server(options);
  server.server().interrupt();
  std::string refused;
  for (int i = 0; i < 2000 && !refused.starts_with("HTTP/1.1 503"); ++i)
    refused = server.get("/ready");
  EXPECT_NE(refused.find("draining"), std::string::npos) << refused;
  EXPECT_TRUE(server.get("/health").starts_with("HTTP/1.1 200"));
  const std::string answer = server.post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos);
  server.server().interrupt();  // the second ends at once
  server.join();
}

TEST(Life, AfterTheDrainDelayRequestsAreRefused) {
  ServerOptions options = testing::test_options();
  options.drain_delay = std::chrono::milliseconds(20);
  TestServer server(options);
  server.engine().hold = true;  // what runs keeps the server
  http::testing::RawClient client(server.port());
  client.send(TestServer::post_bytes("/v1/completions", R"({"prompt":"a","stream":true})"));
  const auto running = server.engine().wait_for_submitted(1)[0];
  server.engine().hold = false;
  server.server().interrupt();
  std::string refused;
  for (int i = 0; i < 2000 && !refused.starts_with("HTTP/1.1 503"); ++i)
    refused = server.post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_NE(refused.find("\"draining\""), std::string::npos) << refused;
  EXPECT_TRUE(server.get("/health").starts_with("HTTP/1.1 200"));
  FakeEngine::push_start(running.request, *running.events, 0);
  FakeEngine::push_token(running.request, *running.events, kEnd);
  FakeEngine::push_finish(*running.events, core::FinishReason::kStop);
  EXPECT_NE(client.read_all().find("[DONE]"), std::string::npos);
  server.join();
}

TEST(Life, DrainLetsRunningAnswersFinishAndRefusesNewOnes) {
  TestServer server;
  server.engine().hold = true;
  http::testing::RawClient client(server.port());
  client.send(TestServer::post_bytes("/v1/completions", R"({"prompt":"a","stream":true})"));
  const auto running = server.engine().wait_for_submitted(1)[0];
  server.server().interrupt();
  std::string refused;
  for (int i = 0; i < 100 && refused.find("draining") == std::string::npos; ++i)
    refused = server.get("/ready");
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503"));
  EXPECT_NE(refused.find("Connection: close"), std::string::npos);
  EXPECT_NE(server.post("/v1/completions", R"({"prompt":"a"})").find("\"draining\""),
            std::string::npos);
  EXPECT_TRUE(server.get("/health").starts_with("HTTP/1.1 200"));
  FakeEngine::push_start(running.request, *running.events, 0);
  FakeEngine::push_token(running.request, *running.events, 'z');
  FakeEngine::push_token(running.request, *running.events, kEnd);
  FakeEngine::push_finish(*running.events, core::FinishReason::kStop);
  EXPECT_NE(client.read_all().find("[DONE]"), std::string::npos);
  server.join();
}

TEST(Life, TheEndWaitsForTheCacheToBeSaved) {
  TestServer server;
  server.engine().saving = true;
  server.server().interrupt();
  for (int i = 0; i < 5000 && server.engine().cache_saves == 0; ++i)
    EXPECT_TRUE(server.get("/health").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(server.engine().cache_saves, 1);
  EXPECT_NE(server.get("/ready").find("draining"), std::string::npos);
  server.engine().saving = false;
  server.join();
}

TEST(Life, ASecondSignalEndsTheSaving) {
  TestServer server;
  server.engine().saving = true;
  server.server().interrupt();
  for (int i = 0; i < 5000 && server.engine().cache_saves == 0; ++i) server.get("/health");
  server.server().interrupt();
  server.join();
}

// What has been told ends in order, with what there is; what has not can be asked for elsewhere.
TEST(Life, DrainCutsOffWhatDoesNotEndInTime) {
  ServerOptions options = testing::test_options();
  options.shutdown_timeout = std::chrono::milliseconds(50);
  TestServer server(options);
  server.engine().hold = true;
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":9)";
  const std::pair<const char*, std::string> asked[] = {
      {"/v1/completions",
       R"({"prompt":"a","stream":true,"stream_options":{"include_usage":true}})"},
      {"/v1/chat/completions", chat + R"(,"stream":true})"},
      {"/v1/messages", chat + R"(,"stream":true})"},
      {"/v1/responses", R"({"input":"a","stream":true})"},
      {"/v1/completions", R"({"prompt":"a","stream":true})"},  // no token comes of it
      {"/v1/messages", chat + "}"}};
  std::vector<std::unique_ptr<http::testing::RawClient>> clients;
  for (const auto& [path, body] : asked) {
    clients.push_back(std::make_unique<http::testing::RawClient>(server.port()));
    clients.back()->send(TestServer::post_bytes(path, body));
    const auto running = server.engine().wait_for_submitted(clients.size()).back();
    if (clients.size() == 5) continue;
    FakeEngine::push_start(running.request, *running.events, 0);
    FakeEngine::push_token(running.request, *running.events, 'z');
    if (clients.size() < 5) clients.back()->read_until("z");
  }
  server.server().interrupt();
  std::vector<std::string> answers;
  for (const auto& client : clients) answers.push_back(client->read_all());
  EXPECT_EQ(server.engine().wait_for_cancelled(std::size(asked)).size(), std::size(asked));
  server.join();
  for (const size_t i : {0u, 1u}) {
    EXPECT_NE(answers[i].find(R"("finish_reason":"abort")"), std::string::npos) << answers[i];
    EXPECT_NE(answers[i].find("data: [DONE]\n\n\r\n0\r\n\r\n"), std::string::npos) << answers[i];
  }
  EXPECT_NE(answers[0].find(R"("completion_tokens":1)"), std::string::npos) << answers[0];
  EXPECT_NE(answers[2].find("event: error"), std::string::npos) << answers[2];
  EXPECT_NE(answers[2].find(R"("overloaded_error")"), std::string::npos) << answers[2];
  EXPECT_EQ(answers[2].find("message_stop"), std::string::npos) << answers[2];
  EXPECT_NE(answers[2].find(R"("request_id":")"), std::string::npos) << answers[2];
  EXPECT_NE(answers[3].find("event: response.failed"), std::string::npos) << answers[3];
  for (const size_t i : {4u, 5u}) EXPECT_TRUE(answers[i].starts_with("HTTP/1.1 503")) << answers[i];
  EXPECT_NE(answers[4].find("\"draining\""), std::string::npos) << answers[4];
}

}  // namespace
}  // namespace api
