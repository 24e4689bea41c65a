// Goal: --kv-events-config takes vLLM's fields and says which one is wrong. Method: objects with
// one field each, right and wrong.
#include "events/publisher_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace events {
namespace {

using testing::HasSubstr;

PublisherOptions read(const std::string& fields) {
  const auto options = parse_publisher_options(R"({"enable_kv_cache_events":true,)" + fields + "}");
  EXPECT_TRUE(options.ok()) << fields;
  return options.value().value();
}

std::string error_of(const std::string& text) {
  const auto options = parse_publisher_options(text);
  return options.ok() ? "" : options.error().message;
}

TEST(PublisherOptions, AreOffUnlessEnabled) {
  for (const char* text : {"{}", R"({"publisher":"zmq"})", R"({"enable_kv_cache_events":false})",
                           R"({"enable_kv_cache_events":true,"publisher":"null"})"}) {
    const auto options = parse_publisher_options(text);
    ASSERT_TRUE(options.ok()) << text;
    EXPECT_FALSE(options.value().has_value()) << text;
  }
}

TEST(PublisherOptions, HaveDefaultsAndFields) {
  const PublisherOptions plain = read(R"("publisher":"zmq")");
  EXPECT_EQ(plain.endpoint, "tcp://127.0.0.1:5557");
  EXPECT_EQ(plain.replay_endpoint, "");
  EXPECT_EQ(plain.buffer_steps, 10'000);
  EXPECT_FALSE(plain.positional);
  const PublisherOptions full = read(
      R"("endpoint":"tcp://*:7","replay_endpoint":"ipc:///x","topic":"kv@a","buffer_steps":1,"hwm":2,
         "max_queue_size":3,"format":"array")");
  EXPECT_EQ(full.endpoint, "tcp://*:7");
  EXPECT_EQ(full.replay_endpoint, "ipc:///x");
  EXPECT_EQ(full.topic, "kv@a");
  EXPECT_EQ(full.buffer_steps, 1);
  EXPECT_EQ(full.hwm, 2);
  EXPECT_EQ(full.max_queue_size, 3);
  EXPECT_TRUE(full.positional);
  EXPECT_EQ(read(R"("replay_endpoint":null)").replay_endpoint, "");
}

TEST(PublisherOptions, NameTheWrongField) {
  EXPECT_THAT(error_of("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(error_of("{\"enable"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(error_of(R"({"enable_kv_cache_events":1})"), HasSubstr("true or false, not 1"));
  EXPECT_THAT(error_of(R"({"publisher":"nats"})"), HasSubstr("publisher must be \"zmq\""));
  EXPECT_THAT(error_of(R"({"endpoint":"http://a:1"})"), HasSubstr("endpoint must be tcp://"));
  EXPECT_THAT(error_of(R"({"endpoint":"tcp://a"})"), HasSubstr("endpoint must be tcp://"));
  EXPECT_THAT(error_of(R"({"replay_endpoint":"inproc://a"})"), HasSubstr("replay_endpoint"));
  EXPECT_THAT(error_of(R"({"buffer_steps":0})"), HasSubstr("buffer_steps must be an integer"));
  EXPECT_THAT(error_of(R"({"hwm":1e99})"), HasSubstr("hwm must be an integer"));
  EXPECT_THAT(error_of(R"({"max_queue_size":99999999999})"), HasSubstr("max_queue_size"));
  EXPECT_THAT(error_of(R"({"format":"json"})"), HasSubstr("format must be"));
  EXPECT_THAT(error_of(R"({"topics":"a"})"), HasSubstr("no field \"topics\""));
  EXPECT_THAT(error_of("{\"topic\":\"" + std::string(2000, 'a') + "\"}"), HasSubstr("topic"));
}

}  // namespace
}  // namespace events
