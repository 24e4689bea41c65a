// Goal: what the engine puts arrives in order and numbered, can be asked for again, and nobody who
// does not read holds anything up. Method: a publisher on ports of its own, with subscribers made
// of plain ZeroMQ sockets; a subscriber that joins counts as joined once it hears something.
#include "events/zmq_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zmq.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace events {
namespace {

using core::KvEvent;
using nlohmann::json;
using testing::HasSubstr;

constexpr int kPatienceMs = 10'000;

class Socket {
 public:
  Socket(void* context, int type, const std::string& endpoint, int timeout_ms = kPatienceMs)
      : socket_(zmq_socket(context, type)) {
    const int linger_ms = 0;
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0) << zmq_strerror(errno);
  }
  ~Socket() { zmq_close(socket_); }

  // Empty: nothing came in time.
  std::vector<std::string> receive() {
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
      std::string frame(1 << 16, '\0');
      const int size = zmq_recv(socket_, frame.data(), frame.size(), 0);
      if (size < 0) return {};
      frame.resize(static_cast<size_t>(size));
      frames.push_back(frame);
      size_t more_size = sizeof more;
      zmq_getsockopt(socket_, ZMQ_RCVMORE, &more, &more_size);
    }
    return frames;
  }

  void send(const std::string& bytes, int flags = 0) {
    zmq_send(socket_, bytes.data(), bytes.size(), flags);
  }

 private:
  void* socket_;
};

uint64_t number_of(const std::string& bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

std::string bytes_of(uint64_t number) {
  std::string bytes(8, '\0');
  for (size_t i = 8; i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number & 0xff);
  return bytes;
}

class ZmqPublisherTest : public testing::Test {
 protected:
  ~ZmqPublisherTest() override { zmq_ctx_term(context_); }

  void open(PublisherOptions options = {}) {
    options.endpoint = "tcp://127.0.0.1:*";
    options.replay_endpoint = "tcp://127.0.0.1:*";
    options.topic = "kv@test";
    auto opened = ZmqPublisher::open(options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    publisher_ = std::move(opened).value();
  }

  // A batch that removes block `key`, or clears all.
  void put(uint64_t key, bool clears = false) {
    core::KvEventBatch batch{.page_tokens = 2};
    batch.events.push_back(
        {.kind = clears ? KvEvent::Kind::kCleared : KvEvent::Kind::kRemoved, .key = key});
    publisher_->put(batch);
  }

  // Numbers of the messages that replay from `first` gives, before the end.
  std::vector<uint64_t> replay(uint64_t first) {
    Socket socket(context_, ZMQ_DEALER, publisher_->replay_endpoint());
    socket.send("", ZMQ_SNDMORE);
    socket.send(bytes_of(first));
    std::vector<uint64_t> numbers;
    for (;;) {  // empty, topic, number, payload
      const auto frames = socket.receive();
      EXPECT_EQ(frames.size(), 4u);
      if (frames.size() != 4) return numbers;
      if (frames[3].empty()) {
        EXPECT_EQ(number_of(frames[2]), ~0ull);
        return numbers;
      }
      EXPECT_EQ(frames[1], "kv@test");
      numbers.push_back(number_of(frames[2]));
    }
  }

  // Until everything put so far has been sent, as its number in replays shows.
  void wait_for(uint64_t number) {
    for (;;) {
      const auto numbers = replay(number);
      if (!numbers.empty() && numbers.back() >= number) return;
    }
  }

  void* context_ = zmq_ctx_new();
  std::unique_ptr<ZmqPublisher> publisher_;
};

TEST_F(ZmqPublisherTest, SendsBatchesInOrder) {
  open();
  Socket subscriber(context_, ZMQ_SUB, publisher_->endpoint(), 20);
  std::vector<std::string> frames;
  uint64_t put_so_far = 0;
  while (frames.empty()) {  // until it has joined
    put(put_so_far++);
    frames = subscriber.receive();
  }
  for (int i = 0; i < 100; ++i) put(put_so_far++);
  for (uint64_t expected = number_of(frames.at(1)); expected < put_so_far; ++expected) {
    if (frames.empty()) frames = subscriber.receive();
    if (frames.empty()) continue;
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0], "kv@test");
    EXPECT_EQ(number_of(frames[1]), expected);
    const json payload = json::from_msgpack(frames[2]);
    EXPECT_EQ(payload[1][0]["block_hashes"][0], expected);
    frames.clear();
  }
}

TEST_F(ZmqPublisherTest, AnswersReplay) {
  open();
  for (uint64_t i = 0; i < 5; ++i) put(i, i == 0);
  wait_for(4);
  EXPECT_THAT(replay(0), testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(replay(3), testing::ElementsAre(3, 4));
  EXPECT_THAT(replay(5), testing::IsEmpty());
  EXPECT_FALSE(publisher_->take_restate());
}

// Batch 0, which said everything, is not kept any more; what says everything anew is, later.
TEST_F(ZmqPublisherTest, AsksForARestatementWhenReplayIsNotEnough) {
  open({.buffer_steps = 3});
  for (uint64_t i = 0; i < 5; ++i) put(i, i == 0);
  wait_for(4);
  EXPECT_THAT(replay(2), testing::ElementsAre(2, 3, 4));
  EXPECT_FALSE(publisher_->take_restate());
  EXPECT_THAT(replay(1), testing::ElementsAre(2, 3, 4));
  EXPECT_TRUE(publisher_->take_restate());
  EXPECT_FALSE(publisher_->take_restate());
  put(5, /*clears=*/true);
  wait_for(5);
  EXPECT_THAT(replay(0), testing::ElementsAre(3, 4, 5));
  EXPECT_FALSE(publisher_->take_restate());
}

TEST_F(ZmqPublisherTest, IgnoresMalformedRequests) {
  open();
  put(0, true);
  wait_for(0);
  Socket dealer(context_, ZMQ_DEALER, publisher_->replay_endpoint(), 100);
  dealer.send("");
  dealer.send(std::string(100, 'x'));
  dealer.send(std::string(5000, 'x'));  // over the limit of a message: the connection ends
  EXPECT_THAT(dealer.receive(), testing::IsEmpty());
  EXPECT_THAT(replay(0), testing::ElementsAre(0));
}

// One subscriber joins and never reads: it costs its own messages alone.
TEST_F(ZmqPublisherTest, NobodyWaitsForASlowSubscriber) {
  open({.buffer_steps = 10, .hwm = 1, .max_queue_size = 100});
  Socket slow(context_, ZMQ_SUB, publisher_->endpoint());
  for (uint64_t i = 0; i < 20'000; ++i) {
    while (publisher_->room() == 0) std::this_thread::yield();
    put(i, i == 0);
  }
  wait_for(19'999);
  EXPECT_EQ(replay(0).size(), 10u);
}

TEST(ZmqPublisher, SaysWhatCannotBeBound) {
  const auto first = ZmqPublisher::open({.endpoint = "tcp://127.0.0.1:*"});
  ASSERT_TRUE(first.ok());
  const auto second = ZmqPublisher::open({.endpoint = first.value()->endpoint()});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, HasSubstr("endpoint " + first.value()->endpoint()));
  EXPECT_THAT(second.error().message, HasSubstr("cannot be bound"));
  const auto third = ZmqPublisher::open(
      {.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = first.value()->endpoint()});
  ASSERT_FALSE(third.ok());
  EXPECT_THAT(third.error().message, HasSubstr("replay_endpoint"));
}

}  // namespace
}  // namespace events
