// For tests: a small model of bytes, an engine that follows a script, and a server around both.
#pragma once

#include <gtest/gtest.h>
#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>
#include <vector>

#include "api/server.h"
#include "base/log.h"
#include "http/testing.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace api::testing {

inline constexpr int kVocab = 260;
inline constexpr core::TokenId kEnd = 256;  // ends a sequence; special
inline constexpr int kContext = 200;

// Ids 0..255 are the bytes, then <|end|>, <|im_start|>, <|im_end|> and a multi-byte token "ab".
inline core::TokenizerData byte_tokenizer_data() {
  core::TokenizerData data;
  data.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    text::append_utf8(data.tokens.emplace_back(),
                      text::byte_level_char(static_cast<uint8_t>(byte)));
  }
  for (const char* token : {"<|end|>", "<|im_start|>", "<|im_end|>", "ab"})
    data.tokens.emplace_back(token);
  data.kinds.assign(data.tokens.size(), core::TokenKind::kNormal);
  for (const int id : {256, 257, 258})
    data.kinds[static_cast<size_t>(id)] = core::TokenKind::kControl;
  data.eos = kEnd;
  return data;
}

// Ignores the prompt. Each sequence gets the tokens of `reply` and then an end, at once, unless
// `hold` is set: then tests push events themselves.
class FakeEngine final : public engine::Engine {
 public:
  struct Sequence {
    core::Request request;
    std::shared_ptr<engine::EventStream> events;
  };

  base::Result<void> submit(core::Request request, std::shared_ptr<engine::EventStream> events,
                            bool joins = false) override {
    const std::lock_guard lock(mutex_);
    joined_.push_back(joins);
    if (refusal.code != base::Code::kInternal) {
      if (refuse_after == 0) return refusal;
      --refuse_after;
    }
    submitted_.push_back({request, events});
    changed_.notify_all();
    if (!hold) play(request, *events);
    return {};
  }
  // Of what has been submitted, whether it entered behind another.
  std::vector<bool> joined() const {
    const std::lock_guard lock(mutex_);
    return joined_;
  }
  void cancel(core::RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
    changed_.notify_all();
  }
  void drain(int64_t) override {}
  void save_cached(int64_t) override { ++cache_saves; }
  bool is_saving() const override { return saving; }
  void reset_prefix_cache() override { ++cache_resets; }
  core::EngineSnapshot snapshot() const override {
    core::EngineSnapshot s;
    s.requests_running = 1;
    s.blocks_total = 10;
    if (!dead) ++progress_;
    s.progress = progress_;
    return s;
  }
  core::LiveState live_state() override {
    const std::lock_guard lock(mutex_);
    ++live_asked;
    return live;
  }
  int32_t context_max() const override { return context; }

  // From now on replies so, byte by byte, and ends.
  void say(std::string_view text) {
    reply.assign(reinterpret_cast<const unsigned char*>(text.data()),
                 reinterpret_cast<const unsigned char*>(text.data()) + text.size());
    reply.push_back(kEnd);
  }
  size_t submitted_count() {
    const std::lock_guard lock(mutex_);
    return submitted_.size();
  }
  // Waits until `count` sequences have been submitted.
  std::vector<Sequence> wait_for_submitted(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return submitted_.size() >= count; });
    return submitted_;
  }
  std::vector<core::RequestId> wait_for_cancelled(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return cancelled_.size() >= count; });
    return cancelled_;
  }

  static void push_start(const core::Request& request, engine::EventStream& events,
                         int32_t cached) {
    engine::Event start{.kind = engine::Event::Kind::kStarted};
    start.prompt_tokens = static_cast<int32_t>(request.prompt.size());
    start.cached_tokens = cached;
    events.push(std::move(start));
    if (!request.sampling.prompt_logprobs || request.prompt.size() < 2) return;
    engine::Event prompt{.kind = engine::Event::Kind::kPrompt, .prompt_begin = 1};
    for (size_t i = 1; i < request.prompt.size(); ++i) {
      prompt.prompt.push_back(scores(request.prompt[i], *request.sampling.prompt_logprobs));
    }
    events.push(std::move(prompt));
  }
  static void push_token(const core::Request& request, engine::EventStream& events,
                         core::TokenId token) {
    engine::Event event{.kind = engine::Event::Kind::kToken, .token = token};
    event.has_logprobs = request.sampling.logprobs.has_value();
    if (event.has_logprobs) event.logprobs = scores(token, *request.sampling.logprobs);
    events.push(std::move(event));
  }
  static void push_finish(engine::EventStream& events, core::FinishReason reason,
                          std::optional<core::TokenId> stop_token = {}, std::string error = {}) {
    engine::Event finished{.kind = engine::Event::Kind::kFinished};
    finished.reason = reason;
    finished.stop_token = stop_token;
    finished.error = std::move(error);
    events.push(std::move(finished));
  }

  // Set before requests come.
  std::vector<core::TokenId> reply = {'h', 'i', kEnd};
  int32_t context = kContext;
  int32_t cached_tokens = 0;
  base::Error refusal{base::Code::kInternal, ""};  // another code: submit() refuses
  int refuse_after = 0;                            // ... after so many were taken
  std::string fails;                               // kFinished with kError after the reply
  std::atomic<bool> hold{false};
  std::atomic<bool> dead{false};
  std::atomic<int> cache_resets{0}, cache_saves{0};
  std::atomic<bool> saving{false};  // is_saving()
  core::LiveState live;             // set before requests come
  int live_asked = 0;

 private:
  // The most likely tokens are 'A', 'B', ... with -0.5, -1.5, ...; the token itself has -0.25.
  static core::PositionLogprobs scores(core::TokenId token, int32_t top) {
    core::PositionLogprobs out{.token = {token, -0.25f}, .rank = 1};
    for (int32_t i = 0; i < top; ++i) out.top.push_back({'A' + i, -0.5f - static_cast<float>(i)});
    return out;
  }

  void play(const core::Request& request, engine::EventStream& events) {
    push_start(request, events, cached_tokens);
    int32_t made = 0;
    for (const core::TokenId token : reply) {
      if (made == request.sampling.max_tokens) break;
      push_token(request, events, token);
      ++made;
      if (token == kEnd && !request.sampling.ignore_eos)
        return push_finish(events, core::FinishReason::kStop);
      for (const core::TokenId stop : request.sampling.stop_token_ids) {
        if (token == stop) return push_finish(events, core::FinishReason::kStop, stop);
      }
    }
    if (!fails.empty()) return push_finish(events, core::FinishReason::kError, {}, fails);
    push_finish(events, core::FinishReason::kLength);
  }

  mutable std::atomic<uint64_t> progress_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Sequence> submitted_;
  std::vector<bool> joined_;
  std::vector<core::RequestId> cancelled_;
};

inline ServerOptions test_options() {
  ServerOptions options;
  options.port = 0;
  options.served_model_names = {"bytes", "alias"};
  options.handle_signals = false;
  options.on_ready = [](uint16_t) {};
  options.limits.body_bytes_max = 100'000;
  options.limits.header_bytes_max = 4096;
  return options;
}

inline base::Result<Backend> test_backend(std::unique_ptr<engine::Engine> engine,
                                          std::string_view chat_template_source) {
  Backend backend;
  backend.config.vocab_size = kVocab;
  backend.config.eos = {kEnd};
  backend.cache = {.block_tokens = 32, .num_blocks = 10, .dtype = "bf16"};
  ASSIGN_OR_RETURN(backend.tokenizer, text::Tokenizer::create(byte_tokenizer_data()));
  ASSIGN_OR_RETURN(text::ChatTemplate chat_template,
                   text::ChatTemplate::parse(chat_template_source));
  backend.chat_template = std::make_unique<text::ChatTemplate>(std::move(chat_template));
  backend.engine = std::move(engine);
  return backend;
}

// A server on a thread of its own, ready for requests. Logs errors only.
class TestServer {
 public:
  explicit TestServer(ServerOptions options = test_options(), int32_t context = kContext,
                      std::string chat_template = std::string(text::kDefaultChatTemplate),
                      std::unique_ptr<grammar::Grammars> grammars = nullptr) {
    base::set_log_level("error").value();
    auto made = std::make_unique<FakeEngine>();
    engine_ = made.get();
    engine_->context = context;
    std::promise<void> ready;
    options.on_ready = [&ready](uint16_t) { ready.set_value(); };
    server_ = std::make_unique<Server>(options);
    server_->listen().value();
    thread_ = std::thread(
        [this, engine = std::move(made), chat_template, grammars = std::move(grammars)]() mutable {
          result_ = server_->run([&] {
            auto backend = test_backend(std::move(engine), chat_template);
            if (backend.ok()) backend.value().grammars = std::move(grammars);
            return backend;
          });
        });
    ready.get_future().wait();
  }
  ~TestServer() {
    if (!thread_.joinable()) return;
    server_->interrupt();
    server_->interrupt();
    thread_.join();
  }

  FakeEngine& engine() { return *engine_; }
  Server& server() { return *server_; }
  uint16_t port() const { return server_->port(); }
  void join() { thread_.join(); }

  std::string get(const std::string& path) {
    return exchange("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  }
  std::string post(const std::string& path, const std::string& body,
                   const std::string& headers = "") {
    return exchange(post_bytes(path, body, headers));
  }
  static std::string post_bytes(const std::string& path, const std::string& body,
                                const std::string& headers = "") {
    const bool has_host = headers.find("Host: ") != std::string::npos;
    return "POST " + path + " HTTP/1.1\r\n" + (has_host ? "" : "Host: localhost\r\n") +
           "Connection: close\r\nContent-Type: application/json\r\n" + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  std::string exchange(const std::string& bytes) {
    http::testing::RawClient client(port());
    client.send(bytes);
    return client.read_all();
  }

 private:
  FakeEngine* engine_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  base::Result<void> result_;
};

// The part after the head; chunked framing is taken off.
inline std::string body_of(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  if (end == std::string::npos) return "";
  std::string body = answer.substr(end + 4);
  if (answer.find("Transfer-Encoding: chunked") > end) return body;
  std::string out;
  for (size_t at = 0; at < body.size();) {
    const size_t length = std::stoul(body.substr(at), nullptr, 16);
    at = body.find("\r\n", at) + 2;
    out += body.substr(at, length);
    at += length + 2;
    if (length == 0) break;
  }
  return out;
}

// The events of a stream whose events have names, as JSON; checks the framing, and that each name
// is the event's type.
inline std::vector<nlohmann::json> typed_events_of(const std::string& answer) {
  std::vector<nlohmann::json> events;
  std::string body = body_of(answer);
  while (!body.empty()) {
    const size_t line = body.find("\ndata: "), end = body.find("\n\n");
    if (!body.starts_with("event: ") || line >= end || end == std::string::npos) {
      ADD_FAILURE() << "not an event with a name: " << body;
      break;
    }
    events.push_back(nlohmann::json::parse(body.substr(line + 7, end - line - 7)));
    EXPECT_EQ(events.back()["type"], body.substr(7, line - 7));
    body.erase(0, end + 2);
  }
  return events;
}

}  // namespace api::testing
