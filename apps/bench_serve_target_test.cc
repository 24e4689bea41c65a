// Goal: nothing that a load test is given can end a line of its requests' heads. Method: options as
// typed, and what becomes of them.
#include "apps/bench_serve_target.h"

#include <gtest/gtest.h>

namespace apps {
namespace {

std::string refusal(const BenchServeOptions& options) {
  const base::Result<Target> target = find_target(options);
  if (target.ok()) return "(none)";
  EXPECT_EQ(target.error().code, base::Code::kInvalidArgument);
  const std::string& message = target.error().message;
  for (const char c : message) EXPECT_GE(c, ' ') << message;
  return message;
}

bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

TEST(BenchServeTarget, HeadersAreTakenAsTheyAre) {
  const base::Result<Target> target = find_target(
      {.api_key = "k", .headers = {"x-a=1=2", "X-Empty=", "x-b=one\ttwo \xC3\xA9", "a.b!=;"}});
  ASSERT_TRUE(target.ok()) << target.error().message;
  std::vector<std::string> lines;
  for (const http::Header& header : target->headers) {
    lines.push_back(header.name + ": " + header.value);
  }
  EXPECT_EQ(lines, (std::vector<std::string>{"Authorization: Bearer k", "x-a: 1=2",
                                             "X-Empty: ", "x-b: one\ttwo \xC3\xA9", "a.b!: ;"}));
}

TEST(BenchServeTarget, NoHeaderBeginsAnother) {
  for (const std::string& text :
       {std::string("x-a=1\r\nx-b: 2"), std::string("x-a=1\nx-b: 2"), std::string("x-a=1\rx"),
        std::string("x-a=1\0x", 7), std::string("x-a=\x7F"), std::string("x-a=\x1B[2J")}) {
    EXPECT_TRUE(has(refusal({.headers = {text}}), "--header x-a: a line break")) << text;
  }
  for (const std::string& text :
       {std::string("x-a\r\nx-b=1"), std::string("x-a: 1\nx-b=1"), std::string("x-a:=1"),
        std::string("x a=1"), std::string("\0x=1", 4), std::string("=1"), std::string("x"),
        std::string(), std::string("\xC3\xA9=1")}) {
    EXPECT_TRUE(has(refusal({.headers = {text}}), "--header: expected KEY=VALUE")) << text;
  }
  for (const char* text : {"Host=a", "content-length=5", "Transfer-Encoding=chunked"}) {
    EXPECT_TRUE(has(refusal({.headers = {text}}), "each request has its own")) << text;
  }
}

TEST(BenchServeTarget, AKeyIsOneLine) {
  for (const std::string& key :
       {std::string("k\r\nx-b: 2"), std::string("k\n"), std::string("k\0", 2)}) {
    const std::string message = refusal({.api_key = key});
    EXPECT_TRUE(has(message, "$SPILLWAY_API_KEY: a line break")) << message;
    EXPECT_FALSE(has(message, "x-b")) << "keys are not shown";
  }
}

TEST(BenchServeTarget, TheFirstLineAndTheHostHaveNoBlanks) {
  for (const char* evil : {"/a HTTP/1.1\r\nx-b: 2", "/a\nb", "/a b", "/a\tb"}) {
    EXPECT_TRUE(has(refusal({.endpoint = evil}), "--endpoint: a blank")) << evil;
    EXPECT_TRUE(has(refusal({.base_url = std::string("http://h:1") + evil}), "--base-url: a blank"))
        << evil;
    EXPECT_TRUE(
        has(refusal({.base_url = std::string("http://h") + (evil + 1)}), "--base-url: a blank"))
        << evil;
    EXPECT_TRUE(has(refusal({.host = std::string("127.0.0.1") + (evil + 2)}), "--host: a blank"))
        << evil;
  }
  EXPECT_TRUE(has(refusal({.endpoint = "v1/completions"}), "--endpoint v1/completions: expected"));
  EXPECT_EQ(refusal({.base_url = "http://[::1]:80/a/", .endpoint = "/v1/completions?a=b"}),
            "(none)");
}

}  // namespace
}  // namespace apps
