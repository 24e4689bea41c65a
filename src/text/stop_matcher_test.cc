// Goal: a stop string is found wherever token borders fall, and no byte more than needed is held
// back. Method: small cases by hand, then random texts over two letters cut at random, against a
// search over the whole text.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "text/detokenizer.h"

namespace text {
namespace {

TEST(StopMatcher, FindsAcrossBordersAndHoldsBackOnlyStarts) {
  StopMatcher matcher({"\nUser:", "END"});
  EXPECT_EQ(matcher.push("hello\n").text, "hello");
  EXPECT_EQ(matcher.push("Us").text, "");
  EXPECT_EQ(matcher.push("ual E").text, "\nUsual ");
  auto piece = matcher.push("ND tail");
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(piece.stop, "END");
  EXPECT_EQ(matcher.push("more").text, "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, IncludesTheStopWhenAsked) {
  StopMatcher matcher({"END"}, /*include_stop=*/true);
  EXPECT_EQ(matcher.push("x E").text, "x ");
  EXPECT_EQ(matcher.push("NDy").text, "END");
}

TEST(StopMatcher, HeldTextComesOutAtTheEnd) {
  StopMatcher matcher({"abcd", ""});
  EXPECT_EQ(matcher.push("zabc").text, "z");
  EXPECT_EQ(matcher.finish(), "abc");
}

TEST(StopMatcher, CompleteFirstWinsThenLongest) {
  EXPECT_EQ(StopMatcher({"abc", "ab"}).push("xabc").stop, "ab");
  EXPECT_EQ(StopMatcher({"c", "abc"}).push("xabc").stop, "abc");
  EXPECT_EQ(StopMatcher({"aab"}).push("aaab").text, "a");
}

TEST(StopMatcher, WhatEndsInPassedTextIsText) {
  StopMatcher matcher({"END", "ENDED"});
  EXPECT_EQ(matcher.pass("x EN"), "x ");
  EXPECT_EQ(matcher.pass("D"), "") << "it may yet become ENDED";
  EXPECT_EQ(matcher.pass("ED"), "ENDED") << "no stop string begins so";
  EXPECT_EQ(matcher.pass(" E"), " ");
  const auto piece = matcher.push("NDy");
  EXPECT_EQ(piece.stop, "END");
  EXPECT_EQ(piece.text, "");
}

// The end and length of the stop string that is complete first in `text` and behind `passed`, the
// longest of those; npos if none.
std::pair<size_t, size_t> search(const std::string& text, const std::vector<std::string>& stops,
                                 size_t passed) {
  for (size_t end = passed + 1; end <= text.size(); ++end) {
    size_t best = 0;
    for (const auto& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) best = std::max(best, stop.size());
    }
    if (best > 0) return {end, best};
  }
  return {std::string::npos, 0};
}

TEST(StopMatcher, AgreesWithASearchOverTheWhole) {
  std::mt19937 random(7);
  const auto word = [&](int length_max) {
    std::string out(1 + random() % length_max, 'a');
    for (char& c : out) c = "ab"[random() % 2];
    return out;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(1 + random() % 3);
    for (auto& stop : stops) stop = word(6) + (random() % 2 ? "c" : "");
    std::string text;
    for (int i = 0; i < 12; ++i) text += word(4) + (random() % 5 ? "" : "c");
    const size_t passed = random() % 2 ? random() % text.size() : 0;
    const auto [end, length] = search(text, stops, passed);

    StopMatcher matcher(stops);
    std::string sent;
    bool stopped = false;
    for (size_t pos = 0; pos < text.size() && !stopped;) {
      size_t count = 1 + random() % 5;
      if (pos < passed) {
        count = std::min(count, passed - pos);
        sent += matcher.pass(std::string_view(text).substr(pos, count));
        pos += count;
        continue;
      }
      auto piece = matcher.push(std::string_view(text).substr(pos, count));
      sent += piece.text;
      stopped = piece.stop.has_value();
      pos += count;
    }
    sent += matcher.finish();
    ASSERT_EQ(stopped, end != std::string::npos) << text;
    ASSERT_EQ(sent, stopped ? text.substr(0, end - length) : text);
  }
}

}  // namespace
}  // namespace text
