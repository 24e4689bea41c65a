// Publishes batches of events over ZeroMQ as vLLM does: docs/events.md has the messages.
//
// A PUB socket sends [topic, sequence number, payload], the number as 8 bytes, big-endian, rising
// by one from 0. A ROUTER socket, where there is one, answers [number] with the kept messages from
// that number on, then one with an empty payload and all bits set. Who asks for what is not kept
// any more gets what there is, and the engine says everything anew to all, unless the kept messages
// have that already: so whoever has once asked for replay ends up with the right index.
//
// Threads: put(), room() and take_restate() are the engine's; sockets belong to a thread of the
// publisher's own. Between them stands a buffer of bounded size, exchanged under a lock that is
// never held during encoding or sending. What a slow subscriber does not take is dropped by its own
// socket's high-water mark and shows as a gap in the numbers.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "core/kv_events.h"
#include "events/publisher_options.h"

namespace events {

class ZmqPublisher final : public core::KvEventSink {
 public:
  // Kept for replay at most, however many batches that are.
  static constexpr size_t kReplayBytesMax = size_t{256} << 20;

  // Binds the sockets and starts the thread. Errors: kIo (an endpoint cannot be bound).
  static base::Result<std::unique_ptr<ZmqPublisher>> open(const PublisherOptions& options);
  // Sends what waits, then ends.
  ~ZmqPublisher() override;

  int32_t room() override;
  void put(const core::KvEventBatch& batch) override;
  bool take_restate() override { return restate_.exchange(false, std::memory_order_relaxed); }

  // As bound: with the port that stands for "*". For tests.
  const std::string& endpoint() const { return bound_; }
  const std::string& replay_endpoint() const { return replay_bound_; }

 private:
  struct Mark {
    double time_s = 0;
    size_t events = 0, tokens = 0, salt_bytes = 0;
  };
  // Batches one behind the other.
  struct Queue {
    int32_t page_tokens = 0;
    std::vector<core::KvEvent> events;
    std::vector<core::TokenId> tokens;
    std::string salts;
    std::vector<Mark> batches;
  };
  struct Kept {
    uint64_t number = 0;
    std::vector<uint8_t> payload;
  };
  struct Sockets;

  ZmqPublisher(const PublisherOptions& options, std::unique_ptr<Sockets> sockets);
  void loop();
  void wake();
  void send_waiting();
  void send(std::vector<uint8_t> payload, bool restates);
  void answer_replay();
  bool has_whole_restate() const;

  const PublisherOptions options_;
  std::unique_ptr<Sockets> sockets_;
  std::string bound_, replay_bound_;
  std::atomic<bool> restate_{false}, stops_{false};

  std::mutex mutex_;
  Queue filling_;  // under mutex_

  // The thread's own.
  Queue sending_;
  std::deque<Kept> kept_;
  size_t kept_bytes_ = 0;
  uint64_t next_number_ = 0;
  uint64_t restated_at_ = 0;  // number of the last batch that says everything anew

  std::thread thread_;
};

}  // namespace events
