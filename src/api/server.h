// The OpenAI-compatible server, from one call: apps/ hands over options and a way to load, and gets
// control back when the server has ended.
//
// The port answers from the start: /health says alive, everything else 503 "loading" until the
// model is there.
//
// SIGTERM or SIGINT ends it in stages. At once: /ready answers 503, every answer says Connection:
// close, /health stays 200. For drain_delay: new requests are still taken, since who routes to us
// learns of it late. Then they are answered 503 "draining", and running answers get
// shutdown_timeout to finish; what they leave of it is for the engine to save its cache
// (engine/cache_saver.h). A second signal ends at once.
//
// An engine that has work and gets nowhere for stall_timeout (engine/stall_watch.h) turns /health
// and new requests to 503; its state is logged once; stall_grace later the process ends with
// kStalledStatus, for whoever restarts it: a hung thread cannot be ended otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/access.h"
#include "base/result.h"
#include "core/model_config.h"
#include "engine/engine.h"
#include "grammar/grammars.h"
#include "http/server.h"
#include "telemetry/metrics.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace api {

// The exit status after a stall: EX_SOFTWARE of sysexits.h.
inline constexpr int kStalledStatus = 70;

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0 takes a free one
  AccessOptions access;  // REQUIRES: check_access_options() is well
  // REQUIRES: not empty. Requests may use each; answers, logs and metrics show the first.
  std::vector<std::string> served_model_names;
  std::string version = "0.1.0";  // of /version
  // Names of text/output_parser.h, or auto: what the chat template shows.
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  http::ServerLimits limits;
  int text_workers = 1;          // for small bodies; large ones and grammars have their own
  int text_queue = 256;          // bodies that wait for a text worker; then 429
  int64_t log_prompt_bytes = 0;  // of each request's body; prompts are people's, so none
  std::chrono::milliseconds drain_delay{0};  // requests are still taken, after the first signal
  std::chrono::milliseconds shutdown_timeout{30'000};  // running answers, after that
  std::chrono::milliseconds flush_timeout{2'000};  // open connections, once no answer is being made
  std::chrono::milliseconds ping_interval{10'000};  // in a stream that has nothing to say
  std::chrono::milliseconds stall_timeout{120'000};
  std::chrono::milliseconds stall_grace{60'000};
  // Ends the process after a stall, or when it does not end by itself after the second signal.
  // Default: std::_Exit.
  std::function<void(int status)> end_process;
  // Called on the I/O thread once the model is loaded, with the port. Default: prints "spillway:
  // serving NAME at URL".
  std::function<void(uint16_t port)> on_ready;
  // Called on the I/O thread at the first signal: a model that is still being fetched is not waited
  // for. May be empty.
  std::function<void()> on_leave;
  std::optional<uint64_t> seed;  // of the draws of requests without one; none: random
  bool log_requests = true;      // a line for each (request_record.h)
  bool log_status = true;        // a line every 10 s, unless idle
  bool handle_signals = true;
};

// A loaded model. Destroyed after the server has ended, members in reverse order.
struct Backend {
  std::shared_ptr<void> keep_alive;  // weights, pools, ...: whatever the engine borrows
  core::ModelConfig config;
  telemetry::CacheConfig cache;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<grammar::Grammars> grammars;  // null: made of the tokenizer
};

// Serves until a signal. `load` runs on a thread of its own; when it fails the server ends with its
// error. Errors: kIo and kInvalidArgument from listening.
base::Result<void> serve(ServerOptions options, std::function<base::Result<Backend>()> load);

// The same in pieces, for tests: start() returns once the port is open; stop() may be called from
// any thread.
class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();
  base::Result<void> listen();
  uint16_t port() const;
  // Serves on this thread.
  base::Result<void> run(std::function<base::Result<Backend>()> load);
  // What a signal does. Thread: any.
  void interrupt();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace api
