#include "api/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "api/endpoints.h"
#include "api/service.h"
#include "base/log.h"
#include "engine/stall_watch.h"
#include "telemetry/stall_report.h"
#include "telemetry/status_line.h"

namespace api {

struct Server::State {
  explicit State(ServerOptions given)
      : service(given),
        http(http_options(given), make_router(service)),
        stall(std::chrono::microseconds(given.stall_timeout).count(),
              std::chrono::microseconds(given.stall_grace).count()) {}

  http::ServerOptions http_options(const ServerOptions& options) {
    http::ServerOptions made{.limits = options.limits};
    made.make_error = [this](http::Refusal refusal, const http::Request& request,
                             const std::string& message) {
      return refusal_response(service, refusal, request, message);
    };
    made.judge = [this](const http::Request& head, std::string_view route) {
      return judge(service, head, route);
    };
    made.on_answer = [this](const http::Request& request, std::string_view route, int status,
                            int64_t duration_us) {
      if (service.loaded()) service.metrics().on_answer(request.method, route, status, duration_us);
    };
    return made;
  }

  void on_loaded(base::Result<Backend> loaded);
  void on_interrupt();
  void begin_drain();
  void watch_engine();
  void end_process(int status);
  void end_if_it_hangs();
  void end_when_quiet();
  void save_cached(std::chrono::steady_clock::duration time);
  void end_when_saved();
  void close();
  void log_status(core::EngineSnapshot before);

  Service service;
  http::Server http;  // after the service: its handlers use it
  base::Result<void> result;
  engine::StallWatch stall;
  std::chrono::steady_clock::time_point drain_end;
  bool interrupted = false, twice_interrupted = false;
};

namespace {

void print_ready(const ServerOptions& options, uint16_t port) {
  const bool is_ipv6 = options.host.find(':') != std::string::npos;
  const std::string host = is_ipv6 ? "[" + options.host + "]" : options.host;
  std::printf("spillway: serving %s at http://%s:%u\n", options.served_model_names.front().c_str(),
              host.c_str(), port);
  std::fflush(stdout);
}

constexpr std::chrono::milliseconds kQuietCheck{20};
constexpr std::chrono::seconds kStatusInterval{10};
// For the batch that is being written when the time to save is over.
constexpr std::chrono::seconds kSaveGrace{5};
// After the second signal: for the running step to end and the disk tier to be closed.
constexpr std::chrono::seconds kEndPatience{10};

}  // namespace

// Thread: I/O.
void Server::State::on_loaded(base::Result<Backend> loaded) {
  if (!loaded.ok()) {
    result = std::move(loaded).error();
    http.stop();
    return;
  }
  service.set_backend(std::move(loaded).value());
  if (service.options().log_status) log_status(service.engine().snapshot());
  watch_engine();
  const ServerOptions& options = service.options();
  if (options.on_ready) {
    options.on_ready(http.port());
  } else {
    print_ready(options, http.port());
  }
}

// Thread: I/O.
void Server::State::log_status(core::EngineSnapshot before) {
  http.after(kStatusInterval, [this, before] {
    const core::EngineSnapshot now = service.engine().snapshot();
    const std::string line =
        telemetry::status_line(before, now, std::chrono::duration<double>(kStatusInterval).count());
    if (!line.empty()) LOG_INFO("{}", line);
    log_status(now);
  });
}

// Thread: I/O. Looks often enough to be late by a tenth at most.
void Server::State::watch_engine() {
  using std::chrono::milliseconds;
  const milliseconds pause = std::min(service.options().stall_timeout / 10, milliseconds{1000});
  http.after(std::max(pause, milliseconds{1}), [this] {
    const core::EngineSnapshot now = service.engine().snapshot();
    const auto state = stall.observe(now, http::monotonic_us());
    const bool fine = state == engine::StallWatch::State::kFine;
    if (!fine && service.engine_alive()) {
      LOG_ERROR("the engine has not got on for {} s; {}", stall.standing_us() / 1'000'000,
                telemetry::describe_stall(now));
    } else if (fine && !service.engine_alive()) {
      LOG_WARN("the engine gets on again");
    }
    service.set_engine_alive(fine);
    if (state == engine::StallWatch::State::kGivenUp) {
      LOG_ERROR("the engine has not got on for {} s: ending with status {}",
                stall.standing_us() / 1'000'000, kStalledStatus);
      return end_process(kStalledStatus);
    }
    watch_engine();
  });
}

void Server::State::end_process(int status) {
  base::logger().flush();
  const auto& end = service.options().end_process;
  end ? end(status) : std::_Exit(status);
}

// Thread: I/O.
void Server::State::on_interrupt() {
  if (std::exchange(interrupted, true)) {
    LOG_WARN("second signal: ending at once");
    twice_interrupted = true;
    http.stop();
    return;
  }
  const auto delay = service.options().drain_delay;
  if (service.options().on_leave) service.options().on_leave();
  service.begin_leaving();
  http.announce_close();
  if (delay.count() == 0) return begin_drain();
  LOG_INFO("leaving: not ready, requests are taken for {} ms", delay.count());
  http.after(delay, [this] { begin_drain(); });
}

void Server::State::begin_drain() {
  LOG_INFO("draining: {} answers are being made", service.generating());
  service.begin_drain();
  drain_end = std::chrono::steady_clock::now() + service.options().shutdown_timeout;
  end_when_quiet();
}

void Server::State::end_when_quiet() {
  const auto left = drain_end - std::chrono::steady_clock::now();
  if (service.generating() == 0) return save_cached(left);
  if (left.count() > 0) return http.after(kQuietCheck, [this] { end_when_quiet(); });
  LOG_WARN("{} answers did not end in time: cut off", service.generating());
  close();
}

// The time that is left of the shutdown timeout is the disk tier's.
void Server::State::save_cached(std::chrono::steady_clock::duration time) {
  if (service.loaded() && service.engine_alive()) {
    service.engine().save_cached(
        std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  }
  end_when_saved();
}

void Server::State::end_when_saved() {
  const bool late = std::chrono::steady_clock::now() >= drain_end + kSaveGrace;
  if (service.loaded() && service.engine().is_saving() && !late)
    return http.after(kQuietCheck, [this] { end_when_saved(); });
  close();
}

// Answers end with what they have, also those that begin only now: they were being read.
void Server::State::close() {
  service.cut_off();
  http.drain(service.options().flush_timeout);
}

// Nobody watches the engine any more, and its thread is waited for: who hangs then is ended, too.
void Server::State::end_if_it_hangs() {
  const ServerOptions& options = service.options();
  const std::chrono::milliseconds patience =
      twice_interrupted ? kEndPatience : options.stall_timeout + options.stall_grace;
  std::thread([patience, end = options.end_process] {
    std::this_thread::sleep_for(patience);
    end ? end(kStalledStatus) : std::_Exit(kStalledStatus);
  }).detach();
}

Server::Server(ServerOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Server::~Server() = default;

base::Result<void> Server::listen() {
  const ServerOptions& options = state_->service.options();
  return state_->http.listen(options.host, options.port);
}

uint16_t Server::port() const {
  return state_->http.port();
}

base::Result<void> Server::run(std::function<base::Result<Backend>()> load) {
  State& state = *state_;
  if (state.service.options().handle_signals)
    state.http.on_signal([&state] { state.on_interrupt(); });
  std::jthread loader([&state, load = std::move(load)] {
    // Shared because a std::function must be copyable.
    auto loaded = std::make_shared<base::Result<Backend>>(load());
    state.http.post([&state, loaded] { state.on_loaded(std::move(*loaded)); });
  });
  state.http.run();
  if (state.service.options().handle_signals) state.end_if_it_hangs();
  loader.join();
  return state.result;
}

void Server::interrupt() {
  state_->http.post([state = state_.get()] { state->on_interrupt(); });
}

base::Result<void> serve(ServerOptions options, std::function<base::Result<Backend>()> load) {
  Server server(std::move(options));
  RETURN_IF_ERROR(server.listen());
  return server.run(std::move(load));
}

}  // namespace api
