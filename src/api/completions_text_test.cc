// Goal: the text of a completion ends where it should and its figures stand at the right places.
// Method: requests against a server whose engine follows a script, whole and streamed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/testing.h"

namespace api {
namespace {

using nlohmann::json;
using testing::body_of;
using testing::kEnd;
using testing::TestServer;

// The first choice of the answer to `fields`, which is a body without braces.
json choice_of(TestServer& server, const std::string& fields) {
  const json body = json::parse(body_of(server.post("/v1/completions", "{" + fields + "}")));
  return body.at("choices").at(0);
}

// The chunks of the same request as a stream, without [DONE].
std::vector<json> chunks_of(TestServer& server, const std::string& fields) {
  std::vector<json> chunks;
  std::string body = body_of(server.post("/v1/completions", "{" + fields + R"(,"stream":true})"));
  for (size_t end; (end = body.find("\n\n")) != std::string::npos; body.erase(0, end + 2)) {
    const std::string data = body.substr(6, end - 6);
    if (data != "[DONE]") chunks.push_back(json::parse(data));
  }
  return chunks;
}

// Text, finish_reason and stop_reason as a JSON array; the same whole and streamed.
std::string ending_of(TestServer& server, const std::string& fields) {
  const json whole = choice_of(server, fields);
  const json ending = {whole["text"], whole["finish_reason"], whole["stop_reason"]};
  std::string text;
  json streamed;
  for (const json& chunk : chunks_of(server, fields)) {
    const json& choice = chunk.at("choices").at(0);
    text += choice["text"].get<std::string>();
    if (!choice["finish_reason"].is_null())
      streamed = {text, choice["finish_reason"], choice["stop_reason"]};
  }
  EXPECT_EQ(streamed.dump(), ending.dump()) << fields;
  return ending.dump();
}

TEST(MinTokens, AStopStringMayBeginWithinThem) {
  TestServer server;
  server.engine().reply = {'x', 'P', 'a', '.', '\n', 'T', kEnd};
  for (const char* least : {"0", "1", "2", "3"}) {
    EXPECT_EQ(
        ending_of(server, std::string(R"("prompt":"a","stop":["Pa."],"min_tokens":)") + least),
        R"(["x","stop","Pa."])")
        << least;
  }
  EXPECT_EQ(ending_of(server, R"("prompt":"a","stop":["Pa."],"min_tokens":3,
                                 "include_stop_str_in_output":true)"),
            R"(["xPa.","stop","Pa."])");
}

TEST(MinTokens, AStopStringThatEndsWithinThemIsText) {
  TestServer server;
  server.engine().reply = {'x', 'P', 'a', '.', 'P', 'a', '.', 'y', kEnd};
  EXPECT_EQ(ending_of(server, R"("prompt":"a","stop":["Pa."],"min_tokens":4)"),
            R"(["xPa.","stop","Pa."])")
      << "the second ends it";
  EXPECT_EQ(ending_of(server, R"("prompt":"a","stop":["Pa."],"min_tokens":7)"),
            R"(["xPa.Pa.y","stop",null])");
  EXPECT_EQ(ending_of(server, R"("prompt":"a","stop":["Pa.","Pa.Pa"],"min_tokens":5)"),
            R"(["x","stop","Pa.Pa"])")
      << "it was the start of a longer one";
}

// The text that is sent is the client's own, whatever is hidden in what follows it.
TEST(Echo, OffsetsCountSpecialTokensThatThePromptWrites) {
  TestServer server;
  for (const char* skip : {"true", "false"}) {
    const std::string fields =
        std::string(R"("prompt":"<|im_start|>u\u20AC<|im_end|>\n","echo":true,"logprobs":0,
                        "max_tokens":2,"skip_special_tokens":)") +
        skip;
    const json whole = choice_of(server, fields);
    EXPECT_EQ(whole["text"], "<|im_start|>u\u20AC<|im_end|>\nhi");
    EXPECT_EQ(whole["logprobs"]["text_offset"].dump(), "[0,12,13,13,13,14,24,25,26]");
    json streamed = json::array();
    for (const json& chunk : chunks_of(server, fields)) {
      for (const json& offset : chunk.at("choices").at(0).at("logprobs").at("text_offset"))
        streamed.push_back(offset);
    }
    EXPECT_EQ(streamed.dump(), whole["logprobs"]["text_offset"].dump());
  }
}

// Token ids have no text of their own: what is sent is what they decode to.
TEST(Echo, OffsetsOfTokenIdsAreThoseOfTheirText) {
  TestServer server;
  const std::string fields = R"("prompt":[257,117,258],"echo":true,"logprobs":0,"max_tokens":1,
                                "skip_special_tokens":)";
  EXPECT_EQ(choice_of(server, fields + "true")["logprobs"]["text_offset"].dump(), "[0,0,1,1]");
  EXPECT_EQ(choice_of(server, fields + "false")["logprobs"]["text_offset"].dump(), "[0,12,13,23]");
}

// How often a stream says what it has used: never, at its end, or with each chunk too.
TEST(Usage, OnEachChunkOnlyWhereUsageIsAskedFor) {
  TestServer server;
  const auto usages = [&](const std::string& options) {
    json out = json::array();
    for (const json& chunk :
         chunks_of(server, R"("prompt":"a","max_tokens":2,"stream_options":)" + options)) {
      const json usage = chunk.value("usage", json("absent"));
      out.push_back(usage.is_object() ? usage["completion_tokens"] : usage);
    }
    return out.dump();
  };
  EXPECT_EQ(usages("{}"), R"(["absent","absent"])");
  EXPECT_EQ(usages(R"({"include_usage":true})"), "[null,null,2]");
  EXPECT_EQ(usages(R"({"include_usage":true,"continuous_usage_stats":true})"), "[1,2,2]");
  EXPECT_EQ(usages(R"({"continuous_usage_stats":true})"), R"(["absent","absent"])");
  EXPECT_EQ(usages(R"({"include_usage":false,"continuous_usage_stats":true})"),
            R"(["absent","absent"])");
}

}  // namespace
}  // namespace api
