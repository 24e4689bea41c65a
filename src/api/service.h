// What the handlers share: the model and engine once they are loaded, the text workers, the
// metrics, and the state of the server. Thread: I/O, but where said otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <stop_token>
#include <string>

#include "api/access.h"
#include "api/errors.h"
#include "api/refusal_lines.h"
#include "api/served_model.h"
#include "api/server.h"
#include "api/text_workers.h"
#include "engine/engine.h"
#include "http/exchange.h"
#include "telemetry/live_meter.h"
#include "telemetry/metrics.h"

namespace api {

class Service {
 public:
  explicit Service(const ServerOptions& options);

  // The model is there: requests are served from now on.
  void set_backend(Backend backend);
  bool loaded() const { return backend_.has_value(); }

  // REQUIRES: loaded().
  const ServedModel& model() const { return model_; }
  engine::Engine& engine() { return *backend_->engine; }
  telemetry::Metrics& metrics() { return *metrics_; }
  // Made when somebody looks first.
  telemetry::LiveMeter& live_meter() {
    if (!live_meter_) live_meter_ = std::make_unique<telemetry::LiveMeter>();
    return *live_meter_;
  }
  const telemetry::CacheConfig& cache() const { return backend_->cache; }

  const ServerOptions& options() const { return options_; }
  TextWorkers& workers() { return workers_; }
  AccessPolicy& access() { return access_; }
  RefusalLines& refusal_lines() { return refusal_lines_; }

  // The server is to end: not ready any more, but requests are taken until begin_drain().
  void begin_leaving() { leaving_ = true; }
  void begin_drain() { draining_ = true; }
  bool draining() const { return draining_; }

  // As of the last look at it.
  void set_engine_alive(bool alive) { engine_alive_ = alive; }
  bool engine_alive() const { return engine_alive_; }

  // Why a generating request cannot be taken now, or nothing.
  std::optional<ApiError> unavailable() const;
  // Why none should be sent here, or nothing.
  std::optional<ApiError> unready() const;

  // Runs `job` on the body of the request on a text worker and sleeps until it is done. Nothing:
  // the queue is full, or the client is gone. `job` may outlive the exchange, so it must borrow
  // from the model only; a body whose client has left before the job began is freed at once and the
  // job never runs.
  template <typename Result>
  http::Task<std::optional<Result>> on_worker(http::Exchange& exchange,
                                              std::function<Result(const std::string& body)> job) {
    auto body = std::make_shared<const std::string>(std::move(exchange.request().body));
    const TextWorkers::Lane lane = TextWorkers::lane_of(body->size());
    return in_lane<Result>(exchange, lane, [body, job = std::move(job)](const std::stop_token&) {
      return job(*body);
    });
  }
  // The same in any lane; a running job is told by its token that nobody waits for it. For a
  // grammar nobody does either once answers are cut off.
  template <typename Result>
  http::Task<std::optional<Result>> in_lane(http::Exchange& exchange, TextWorkers::Lane lane,
                                            std::function<Result(const std::stop_token&)> job) {
    struct Shared {
      std::function<Result(const std::stop_token&)> job;
      Result result = {};
      std::atomic<bool> done{false};
    };
    struct Stop {  // also when the handler is destroyed in its sleep
      std::stop_source source = {};
      ~Stop() { source.request_stop(); }
    };
    Stop stop;
    const auto shared = std::make_shared<Shared>();
    shared->job = std::move(job);
    std::function<void()> work = [weak = std::weak_ptr(shared), token = stop.source.get_token(),
                                  wake = exchange.waker()] {
      const auto held = weak.lock();
      if (!held) return;
      held->result = held->job(token);
      held->done.store(true);
      wake();
    };
    if (!workers_.try_submit(std::move(work), lane)) co_return std::nullopt;
    const std::chrono::milliseconds long_time{3'600'000};
    const bool ends_early = lane == TextWorkers::Lane::kGrammars;
    while (!shared->done.load() && !exchange.gone() && !(ends_early && cut_off_)) {
      co_await exchange.wait(long_time);
    }
    if (!shared->done.load()) co_return std::nullopt;
    co_return std::move(shared->result);
  }

  core::RequestId next_request_id() { return core::RequestId{++last_request_id_}; }
  uint64_t random() { return random_(); }
  // For a request without a seed.
  uint64_t draw_seed() { return draws_(); }
  std::string random_hex();  // 32 digits

  // Answers being generated, each as what wakes its handler: what a drain waits for.
  using Generating = std::list<std::function<void()>>;
  Generating::iterator begin_generating(std::function<void()> wake) {
    return generating_.insert(generating_.end(), std::move(wake));
  }
  void end_generating(Generating::iterator answer) { generating_.erase(answer); }
  size_t generating() const { return generating_.size(); }
  // Those that there are now, and any that begin later, end with what they have.
  void cut_off() {
    cut_off_ = true;
    for (const auto& wake : generating_) wake();
  }
  bool is_cut_off() const { return cut_off_; }

 private:
  void choose_parsers();
  void make_grammars();

  ServerOptions options_;
  AccessPolicy access_;
  RefusalLines refusal_lines_;
  std::optional<Backend> backend_;
  ServedModel model_;
  std::unique_ptr<grammar::Grammars> grammars_;
  std::unique_ptr<telemetry::Metrics> metrics_;
  std::unique_ptr<telemetry::LiveMeter> live_meter_;
  std::mt19937_64 random_, draws_;
  uint64_t last_request_id_ = 0;
  bool leaving_ = false, draining_ = false, cut_off_ = false;
  Generating generating_;
  bool engine_alive_ = true;
  TextWorkers workers_;  // last: its jobs use the model
};

}  // namespace api
