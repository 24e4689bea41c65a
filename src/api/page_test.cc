// Goal: the page and the state behind it are served as they should be: open files under a strict
// policy, a keyed state whose figures are the engine's. Method: requests against a server whose
// engine follows a script.
#include "api/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/testing.h"

namespace api {
namespace {

using nlohmann::json;
using testing::body_of;
using ::testing::HasSubstr;
using testing::TestServer;

TEST(Page, FilesAreServedUnderAStrictPolicy) {
  TestServer server;
  ASSERT_GE(page_files().size(), 3u);
  for (const PageFile& file : page_files()) {
    const std::string answer = server.get(std::string(file.path));
    EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200")) << file.path;
    EXPECT_THAT(answer,
                HasSubstr("content-security-policy: default-src 'none'; script-src 'self'"));
    EXPECT_THAT(answer, HasSubstr("x-content-type-options: nosniff"));
    EXPECT_EQ(body_of(answer), file.bytes) << file.path;
  }
  EXPECT_THAT(server.get("/"), HasSubstr("text/html; charset=utf-8"));
}

TEST(Page, NamesNothingElsewhere) {
  for (const PageFile& file : page_files()) {
    std::string text(file.bytes);
    for (const std::string known : {"http://www.w3.org/2000/svg"}) {
      for (size_t at; (at = text.find(known)) != std::string::npos;) text.erase(at, known.size());
    }
    EXPECT_EQ(text.find("http://"), std::string::npos) << file.path;
    EXPECT_EQ(text.find("https://"), std::string::npos) << file.path;
    EXPECT_EQ(text.find("innerHTML"), std::string::npos)
        << file.path << ": text of models must not become markup";
  }
}

TEST(Page, IsOpenWhereAKeyIsAskedForAndItsStateIsNot) {
  ServerOptions options = testing::test_options();
  options.access.api_keys = {"secret"};
  TestServer server(options);
  EXPECT_THAT(server.get("/"), HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(server.get("/spillway/state"), HasSubstr("HTTP/1.1 401"));
  const std::string answer = server.exchange(
      "GET /spillway/state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: "
      "Bearer secret\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200"));
}

core::LiveState two_sequences() {
  core::LiveState state;
  state.made_us = http::monotonic_us();
  state.in_step = true;
  state.step_decodes = 1;
  state.sequences.resize(2);
  core::LiveSequenceState& first = state.sequences[0];
  first.seq = core::SeqId{4};
  first.state = core::LiveSequenceState::State::kDecode;
  first.prompt_tokens = 90;
  first.pages_selected = 200;
  first.pages_missed = 20;
  first.strip.reset(4);
  first.strip.device_known = core::Known::kCells;
  first.strip.device = {255, 1, 128, 254};
  first.strip.add(&first.strip.host, 0, 3);
  state.sequences[1].state = core::LiveSequenceState::State::kReading;
  state.sequences_left_out = 3;
  return state;
}

TEST(State, SaysWhatTheEngineSays) {
  TestServer server;
  server.engine().live = two_sequences();
  const json state = json::parse(body_of(server.get("/spillway/state")));
  EXPECT_EQ(state["object"], "spillway.state");
  EXPECT_EQ(state["model"], "bytes");
  EXPECT_EQ(state["status"], "serving");
  EXPECT_LT(state["age_ms"], 60'000);
  EXPECT_EQ(state["batch"]["decodes"], 1);
  EXPECT_EQ(state["batch"]["running"], 1);
  EXPECT_EQ(state["context_max"], testing::kContext);
  EXPECT_TRUE(state["tiers"]["host"].is_null());
  EXPECT_TRUE(state["working_set"].is_null()) << "there is no host tier";
  ASSERT_EQ(state["sequences"].size(), 2u);
  const json& first = state["sequences"][0];
  EXPECT_EQ(first["state"], "decode");
  EXPECT_DOUBLE_EQ(first["hit_ratio"], 0.9);
  EXPECT_EQ(first["strip"]["device"], "9158");
  EXPECT_EQ(first["strip"]["host"], "9990");
  EXPECT_EQ(first["strip"]["disk"], "0000");
  EXPECT_EQ(first["strip"]["device_known"], "cells");
  EXPECT_EQ(state["sequences"][1]["state"], "reading");
  EXPECT_TRUE(state["sequences"][1]["hit_ratio"].is_null());
  EXPECT_EQ(state["sequences_left_out"], 3);
}

TEST(State, AnswersWithoutAPictureToo) {
  TestServer server;
  const json state = json::parse(body_of(server.get("/spillway/state")));
  EXPECT_TRUE(state["age_ms"].is_null());
  EXPECT_TRUE(state["sequences"].empty());
  EXPECT_TRUE(state["rates"].is_null()) << "the first look";
  EXPECT_TRUE(state["latency"]["ttft_s"].is_null());
}

TEST(State, KnowsTheFirstTokenOfAnAnswerThatGoesOn) {
  TestServer server;
  server.engine().hold = true;
  http::testing::RawClient client(server.port());
  client.send(TestServer::post_bytes("/v1/completions", R"({"prompt":"x","stream":true})"));
  const auto running = server.engine().wait_for_submitted(1)[0];
  testing::FakeEngine::push_start(running.request, *running.events, 0);
  testing::FakeEngine::push_token(running.request, *running.events, 'z');
  client.read_until("z");
  json latency = json::parse(body_of(server.get("/spillway/state")))["latency"];
  EXPECT_EQ(latency["ttft_s"]["count"], 1);
  EXPECT_TRUE(latency["itl_s"].is_null());
  testing::FakeEngine::push_token(running.request, *running.events, 'y');
  testing::FakeEngine::push_finish(*running.events, core::FinishReason::kLength);
  client.read_all();
  latency = json::parse(body_of(server.get("/spillway/state")))["latency"];
  EXPECT_EQ(latency["ttft_s"]["count"], 1);
  EXPECT_EQ(latency["itl_s"]["count"], 1);
}

TEST(State, IsNotAskedForByOthers) {
  TestServer server;
  server.get("/metrics");
  server.get("/");
  server.post("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(server.engine().live_asked, 0) << "it costs nothing when nobody looks";
}

}  // namespace
}  // namespace api
