#include "events/zmq_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thread_name.h"
#include "events/kv_event_codec.h"

namespace events {
namespace {

constexpr int64_t kRequestBytesMax = 1024;  // subscriptions and replay requests
constexpr uint64_t kEnd = ~0ull;

double now_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::array<uint8_t, 8> big_endian(uint64_t number) {
  std::array<uint8_t, 8> bytes{};
  for (size_t i = 8; i-- > 0; number >>= 8) bytes[i] = static_cast<uint8_t>(number & 0xff);
  return bytes;
}

uint64_t from_big_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

// False: the frame was not taken, and so neither is the message.
template <typename Bytes>
bool send_frame(void* socket, const Bytes& bytes, bool more) {
  return zmq_send(socket, bytes.data(), bytes.size(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

bool is_local(std::string_view endpoint) {
  return endpoint.starts_with("ipc://") || endpoint.starts_with("tcp://127.") ||
         endpoint.starts_with("tcp://localhost:") || endpoint.starts_with("tcp://[::1]:");
}

}  // namespace

// The context ends when its sockets are closed.
struct ZmqPublisher::Sockets {
  void* context = nullptr;
  void* pub = nullptr;
  void* replay = nullptr;  // null: none
  int wake_fd = -1;

  ~Sockets() {
    for (void* socket : {pub, replay}) {
      if (socket != nullptr) zmq_close(socket);
    }
    if (context != nullptr) zmq_ctx_term(context);
    if (wake_fd >= 0) close(wake_fd);
  }

  base::Result<void*> bind(int type, const char* field, const std::string& endpoint, int hwm,
                           std::string* bound) {
    void* socket = zmq_socket(context, type);
    CHECK(socket != nullptr, "{}", zmq_strerror(errno));
    (type == ZMQ_PUB ? pub : replay) = socket;
    const int linger_ms = 0, ipv6 = endpoint.find('[') != std::string::npos;
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof ipv6);
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &kRequestBytesMax, sizeof kRequestBytesMax);
    if (zmq_bind(socket, endpoint.c_str()) != 0) {
      return base::error(base::Code::kIo, "--kv-events-config: {} {} cannot be bound: {}", field,
                         endpoint, zmq_strerror(errno));
    }
    std::array<char, 1100> name{};
    size_t size = name.size();
    zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, name.data(), &size);
    *bound = name.data();
    return socket;
  }
};

base::Result<std::unique_ptr<ZmqPublisher>> ZmqPublisher::open(const PublisherOptions& options) {
  auto sockets = std::make_unique<Sockets>();
  sockets->context = zmq_ctx_new();
  sockets->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  CHECK(sockets->context != nullptr && sockets->wake_fd >= 0, "error {}", errno);
  std::string bound, replay_bound;
  RETURN_IF_ERROR(sockets->bind(ZMQ_PUB, "endpoint", options.endpoint, options.hwm, &bound));
  if (!options.replay_endpoint.empty()) {
    // A whole answer must fit.
    RETURN_IF_ERROR(sockets->bind(ZMQ_ROUTER, "replay_endpoint", options.replay_endpoint,
                                  std::max(options.hwm, options.buffer_steps + 1), &replay_bound));
  }
  for (const std::string& endpoint : {bound, replay_bound}) {
    if (endpoint.empty() || is_local(endpoint)) continue;
    LOG_WARN("{} tells the tokens of all prompts to whoever can reach it", endpoint);
  }
  std::unique_ptr<ZmqPublisher> made(new ZmqPublisher(options, std::move(sockets)));
  made->bound_ = bound;
  made->replay_bound_ = replay_bound;
  made->thread_ = std::thread([publisher = made.get()] { publisher->loop(); });
  return made;
}

ZmqPublisher::ZmqPublisher(const PublisherOptions& options, std::unique_ptr<Sockets> sockets)
    : options_(options), sockets_(std::move(sockets)) {
  const auto events = static_cast<size_t>(options.max_queue_size);
  for (Queue* queue : {&filling_, &sending_}) {
    queue->events.reserve(events);
    queue->batches.reserve(events);
  }
}

ZmqPublisher::~ZmqPublisher() {
  stops_.store(true, std::memory_order_relaxed);
  wake();
  thread_.join();
}

void ZmqPublisher::wake() {
  const uint64_t one = 1;
  // Fails when the counter is full: then the thread is awake anyway.
  [[maybe_unused]] const ssize_t written = write(sockets_->wake_fd, &one, sizeof one);
}

int32_t ZmqPublisher::room() {
  std::lock_guard lock(mutex_);
  return options_.max_queue_size - static_cast<int32_t>(filling_.events.size());
}

void ZmqPublisher::put(const core::KvEventBatch& batch) {
  {
    std::lock_guard lock(mutex_);
    filling_.page_tokens = batch.page_tokens;
    // Both queues come by here, once each.
    filling_.tokens.reserve(filling_.events.capacity() * static_cast<size_t>(batch.page_tokens));
    filling_.events.insert(filling_.events.end(), batch.events.begin(), batch.events.end());
    filling_.tokens.insert(filling_.tokens.end(), batch.tokens.begin(), batch.tokens.end());
    filling_.salts += batch.salts;
    filling_.batches.push_back(
        {now_s(), batch.events.size(), batch.tokens.size(), batch.salts.size()});
  }
  wake();
}

void ZmqPublisher::loop() {
  base::name_this_thread("kv-events");
  std::array<zmq_pollitem_t, 2> items{};
  items[0] = {.socket = nullptr, .fd = sockets_->wake_fd, .events = ZMQ_POLLIN, .revents = 0};
  items[1] = {.socket = sockets_->replay, .fd = 0, .events = ZMQ_POLLIN, .revents = 0};
  const int count = sockets_->replay != nullptr ? 2 : 1;
  while (!stops_.load(std::memory_order_relaxed)) {
    if (zmq_poll(items.data(), count, -1) < 0) continue;  // a signal
    if (uint64_t woken = 0; items[0].revents != 0) {
      [[maybe_unused]] const ssize_t n = read(sockets_->wake_fd, &woken, sizeof woken);
    }
    send_waiting();
    if (count == 2 && items[1].revents != 0) answer_replay();
  }
  send_waiting();
}

void ZmqPublisher::send_waiting() {
  {
    std::lock_guard lock(mutex_);
    std::swap(filling_, sending_);
  }
  size_t event = 0, token = 0, salt = 0;
  for (const Mark& mark : sending_.batches) {
    const BatchView view{.time_s = mark.time_s,
                         .page_tokens = sending_.page_tokens,
                         .events = std::span(sending_.events).subspan(event, mark.events),
                         .tokens = std::span(sending_.tokens).subspan(token, mark.tokens),
                         .salts = std::string_view(sending_.salts).substr(salt, mark.salt_bytes)};
    const bool restates =
        !view.events.empty() && view.events.front().kind == core::KvEvent::Kind::kCleared;
    send(encode(view, options_.positional), restates);
    event += mark.events;
    token += mark.tokens;
    salt += mark.salt_bytes;
  }
  sending_.events.clear();
  sending_.tokens.clear();
  sending_.salts.clear();
  sending_.batches.clear();
}

void ZmqPublisher::send(std::vector<uint8_t> payload, bool restates) {
  const uint64_t number = next_number_++;
  if (restates) restated_at_ = number;
  [[maybe_unused]] const bool sent = send_frame(sockets_->pub, options_.topic, true) &&
                                     send_frame(sockets_->pub, big_endian(number), true) &&
                                     send_frame(sockets_->pub, payload, false);
  kept_bytes_ += payload.size();
  kept_.push_back({number, std::move(payload)});
  while (std::ssize(kept_) > options_.buffer_steps || kept_bytes_ > kReplayBytesMax) {
    kept_bytes_ -= kept_.front().payload.size();
    kept_.pop_front();
  }
}

bool ZmqPublisher::has_whole_restate() const {
  return kept_.empty() || restated_at_ >= kept_.front().number;
}

void ZmqPublisher::answer_replay() {
  std::vector<std::string> frames;
  for (int more = 1; more != 0;) {
    std::array<char, kRequestBytesMax> frame{};
    const int size = zmq_recv(sockets_->replay, frame.data(), frame.size(), ZMQ_DONTWAIT);
    if (size < 0) return;
    if (frames.size() < 4) {
      frames.emplace_back(frame.data(), std::min(static_cast<size_t>(size), frame.size()));
    }
    size_t more_size = sizeof more;
    zmq_getsockopt(sockets_->replay, ZMQ_RCVMORE, &more, &more_size);
  }
  // [identity, empty, number]; others are not answered.
  if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) return;
  const uint64_t first = from_big_endian(frames[2]);
  if (!kept_.empty() && first < kept_.front().number && !has_whole_restate()) {
    restate_.store(true, std::memory_order_relaxed);
  }
  const auto reply = [&](const std::string& topic, uint64_t number, const auto& payload) {
    void* socket = sockets_->replay;
    return send_frame(socket, frames[0], true) && send_frame(socket, std::string(), true) &&
           send_frame(socket, topic, true) && send_frame(socket, big_endian(number), true) &&
           send_frame(socket, payload, false);
  };
  for (const Kept& kept : kept_) {
    if (kept.number >= first && !reply(options_.topic, kept.number, kept.payload)) break;
  }
  reply("", kEnd, std::string());
}

}  // namespace events
