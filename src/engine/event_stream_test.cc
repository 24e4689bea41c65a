// Goal: a reader gets every event once, in order, with what was pushed; a writer that breaks the
// order is stopped. Method: by hand.
#include "engine/event_stream.h"

#include <gtest/gtest.h>

#include <thread>

namespace engine {
namespace {

core::Request request(int32_t max_tokens) {
  core::Request r;
  r.prompt = {1, 2, 3, 4};
  r.sampling.max_tokens = max_tokens;
  return r;
}

Event token(core::TokenId id) {
  return {.kind = Event::Kind::kToken, .token = id};
}

TEST(EventStream, DeliversInOrderAndWakesOncePerPush) {
  int wakes = 0;
  EventStream stream(request(2), [&] { ++wakes; });
  stream.reserve();
  EXPECT_FALSE(stream.try_pop());
  stream.push({.kind = Event::Kind::kStarted, .prompt_tokens = 4, .cached_tokens = 3});
  stream.push(token(7));
  EXPECT_EQ(stream.try_pop()->cached_tokens, 3);
  stream.push(token(8));
  stream.push({.kind = Event::Kind::kFinished, .reason = core::FinishReason::kLength});
  EXPECT_EQ(stream.try_pop()->token, 7);
  EXPECT_EQ(stream.try_pop()->token, 8);
  const Event last = stream.try_pop().value();
  EXPECT_EQ(last.kind, Event::Kind::kFinished);
  EXPECT_EQ(last.reason, core::FinishReason::kLength);
  EXPECT_FALSE(stream.try_pop());
  EXPECT_EQ(wakes, 4);
}

TEST(EventStream, PromptChunksThatWaitComeAsOne) {
  core::Request r = request(0);
  r.sampling.prompt_logprobs = 0;
  EventStream stream(r, nullptr);
  stream.push({.kind = Event::Kind::kStarted});
  stream.push(
      {.kind = Event::Kind::kPrompt, .prompt_begin = 1, .prompt = {{.rank = 5}, {.rank = 6}}});
  stream.push({.kind = Event::Kind::kPrompt, .prompt_begin = 3, .prompt = {{.rank = 7}}});
  EXPECT_EQ(stream.try_pop()->kind, Event::Kind::kStarted);
  const Event event = stream.try_pop().value();
  EXPECT_EQ(event.prompt_begin, 1);
  ASSERT_EQ(event.prompt.size(), 3u);
  EXPECT_EQ(event.prompt[2].rank, 7);
}

TEST(EventStream, LogprobsTravelWithTheirToken) {
  core::Request r = request(1);
  r.sampling.logprobs = 1;
  EventStream stream(r, nullptr);
  stream.push({.kind = Event::Kind::kStarted});
  Event event = token(9);
  event.has_logprobs = true;
  event.logprobs = {.token = {9, -0.5f}, .rank = 1, .top = {{9, -0.5f}}};
  stream.push(std::move(event));
  stream.try_pop();
  const Event read = stream.try_pop().value();
  EXPECT_TRUE(read.has_logprobs);
  EXPECT_EQ(read.logprobs.top.size(), 1u);
}

TEST(EventStream, AWaitingReaderWakesForAPush) {
  EventStream stream(request(1), nullptr);
  std::jthread writer([&] { stream.push({.kind = Event::Kind::kStarted}); });
  EXPECT_TRUE(stream.pop_for(std::chrono::seconds(60)));
  EXPECT_FALSE(stream.pop_for(std::chrono::microseconds(1)));
}

TEST(EventStreamDeathTest, AWriterOutOfOrderIsStopped) {
  EventStream stream(request(1), nullptr);
  EXPECT_DEATH(stream.push(token(1)), "kToken before kStarted");
  stream.push({.kind = Event::Kind::kStarted});
  EXPECT_DEATH(stream.push({.kind = Event::Kind::kStarted}), "kStarted twice");
  EXPECT_DEATH(stream.push({.kind = Event::Kind::kPrompt, .prompt_begin = 1, .prompt = {{}}}), "0");
  stream.push(token(1));
  EXPECT_DEATH(stream.push(token(1)), "more than 1 tokens");
  EXPECT_DEATH(stream.push({.kind = Event::Kind::kPrompt}), "kPrompt out of order");
  stream.push({.kind = Event::Kind::kFinished});
  EXPECT_DEATH(stream.push(token(1)), "after kFinished");
}

}  // namespace
}  // namespace engine
