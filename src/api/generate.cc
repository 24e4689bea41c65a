#include "api/generate.h"

#include <ctime>
#include <utility>

#include "api/answer_format.h"
#include "api/choice.h"
#include "api/constrain.h"
#include "api/json_writer.h"
#include "api/prepare.h"
#include "api/request_record.h"
#include "api/respond.h"
#include "base/log.h"

namespace api {
namespace {

// The choices of one answer and their sequences in the engine. Whatever way the handler ends, its
// destructor cancels what still runs and tells the metrics.
class Generation {
 public:
  // `record`: of the request; it outlives this. `wake`: its handler, when there is news.
  Generation(Service& service, Prepared prepared, RequestRecord& record, int64_t arrival_us,
             std::function<void()> wake)
      : service_(service),
        prepared_(std::move(prepared)),
        record_(record),
        arrival_us_(arrival_us),
        place_(service.begin_generating(std::move(wake))) {}
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  ~Generation() {
    for (Running& running : running_) {
      if (!running.told) finish(running);
    }
    service_.end_generating(place_);
  }

  struct Running {
    core::RequestId id{};
    std::shared_ptr<engine::EventStream> events;
    Choice choice;
    const PreparedPrompt* prompt;
    bool first_of_prompt;  // its prompt and cached tokens count in the usage
    bool told = false;     // the end is known to the metrics and, where needed, to the engine
    Delta whole = {};      // not streaming: everything
  };

  std::optional<ApiError> submit();

  // Pops all events there are; what is cut off then ends, as aborted. `on_delta(running, index,
  // delta)` gets every piece of news.
  template <typename OnDelta>
  void pump(OnDelta on_delta);

  bool finished() const { return open_ == 0; }
  // The error that ended a sequence, null when all is well.
  const std::string* error() const;
  // Sequences have been cut off: what was not sent yet is worth less than another try elsewhere.
  bool is_cut_off() const { return cut_off_; }
  Usage usage() const;
  Usage usage_of(const Running& running) const;
  const Prepared& prepared() const { return prepared_; }
  // Each choice with its `whole`.
  std::vector<ChoiceView> views() const;

 private:
  core::Request make_request(const PreparedPrompt& prompt, int32_t k, uint64_t seed) const;
  void finish(Running& running);

  Service& service_;
  Prepared prepared_;
  RequestRecord& record_;
  int64_t arrival_us_;
  Service::Generating::iterator place_;
  std::vector<Running> running_;  // by index of the choice
  size_t open_ = 0;
  bool cut_off_ = false;
  int32_t generated_max_ = 0;
};

core::Request Generation::make_request(const PreparedPrompt& prompt, int32_t k,
                                       uint64_t seed) const {
  const GenerateRequest& r = prepared_.request;
  core::Request request;
  request.id = service_.next_request_id();
  request.prompt = prompt.tokens;
  request.sampling = r.sampling;
  request.sampling.max_tokens = prompt.max_tokens;
  request.open_ended = prompt.open_ended;
  request.sampling.seed = seed + static_cast<uint64_t>(k);
  request.sampling.logprobs = r.logprobs;
  request.sampling.prompt_logprobs = r.prompt_logprobs;
  if (r.echo && r.logprobs) {
    request.sampling.prompt_logprobs = std::max(*r.logprobs, r.prompt_logprobs.value_or(0));
  }
  request.cache_salt = r.cache_salt;
  request.arrival_us = arrival_us_;
  return request;
}

// All sequences, or none and the reason.
std::optional<ApiError> Generation::submit() {
  const GenerateRequest& r = prepared_.request;
  const uint64_t seed = r.seed ? static_cast<uint64_t>(*r.seed) : service_.draw_seed();
  running_.reserve(prepared_.prompts.size() * static_cast<size_t>(r.n));
  for (const PreparedPrompt& prompt : prepared_.prompts) {
    for (int32_t k = 0; k < r.n; ++k) {
      core::Request request = make_request(prompt, k, seed);
      if (!prepared_.constraints.empty())
        request.constraint = std::move(prepared_.constraints[running_.size()]);
      const core::RequestId id = request.id;
      auto events = std::make_shared<engine::EventStream>(request, *place_);
      auto submitted = service_.engine().submit(std::move(request), events, !running_.empty());
      if (!submitted.ok()) {
        for (Running& running : running_) {
          service_.engine().cancel(running.id);
          running.told = true;
        }
        return from_engine_error(submitted.error());
      }
      running_.push_back(
          {.id = id,
           .events = std::move(events),
           .choice = Choice(prepared_, prompt, service_.model(), arrival_us_, service_.random()),
           .prompt = &prompt,
           .first_of_prompt = k == 0});
    }
  }
  open_ = running_.size();
  return std::nullopt;
}

template <typename OnDelta>
void Generation::pump(OnDelta on_delta) {
  const int64_t now_us = http::monotonic_us();
  for (size_t i = 0; i < running_.size(); ++i) {
    Running& running = running_[i];
    while (!running.told) {
      std::optional<engine::Event> event = running.events->try_pop();
      if (!event) break;
      Delta delta;
      const bool news = running.choice.take(*std::move(event), now_us, delta);
      if (const auto wait_us = running.choice.first_token_wait_us())
        service_.metrics().on_first_token(*wait_us);
      if (const auto gap_us = running.choice.token_gap_us())
        service_.metrics().on_token_gap(*gap_us);
      if (running.choice.finished()) finish(running);
      if (news) on_delta(running, i, std::move(delta));
    }
    if (running.told || !service_.is_cut_off()) continue;
    cut_off_ = true;
    finish(running);
    Delta rest;
    engine::Event end{.kind = engine::Event::Kind::kFinished};
    end.reason = core::FinishReason::kAbort;
    running.choice.take(std::move(end), now_us, rest);
    on_delta(running, i, std::move(rest));
  }
}

void Generation::finish(Running& running) {
  // Unfinished, or ended by its text: the engine would go on.
  if (!running.choice.finished() || running.choice.stopped_by_text())
    service_.engine().cancel(running.id);
  const telemetry::FinishedRequest story = running.choice.story(http::monotonic_us());
  service_.metrics().on_finished(story);
  record_.add_sequence(story, running.events->pages(), running.first_of_prompt);
  running.told = true;
  generated_max_ = std::max(generated_max_, running.choice.completion_tokens());
  if (open_ > 0 && --open_ == 0) {
    service_.metrics().on_request(prepared_.request.n, generated_max_);
  }
}

const std::string* Generation::error() const {
  for (const Running& running : running_) {
    if (running.choice.finished() && running.choice.reason() == core::FinishReason::kError) {
      return &running.choice.error();
    }
  }
  return nullptr;
}

Usage Generation::usage_of(const Running& running) const {
  return {.prompt_tokens = static_cast<int64_t>(running.prompt->tokens.size()),
          .completion_tokens = running.choice.completion_tokens(),
          .cached_tokens = running.choice.cached_tokens(),
          .reasoning_tokens = running.choice.reasoning_tokens()};
}

std::vector<ChoiceView> Generation::views() const {
  std::vector<ChoiceView> views;
  for (size_t i = 0; i < running_.size(); ++i) {
    const Running& running = running_[i];
    views.push_back({i, running.choice, *running.prompt, running.whole});
  }
  return views;
}

// A prompt counts once, however many choices it has.
Usage Generation::usage() const {
  Usage total;
  for (const Running& running : running_) {
    const Usage one = usage_of(running);
    total.completion_tokens += one.completion_tokens;
    total.reasoning_tokens += one.reasoning_tokens;
    if (!running.first_of_prompt) continue;
    total.prompt_tokens += one.prompt_tokens;
    total.cached_tokens += one.cached_tokens;
  }
  return total;
}

ApiError shutting_down() {
  return {Problem::kDraining, "The server is shutting down."};
}

http::Task<void> answer_whole(http::Exchange& exchange, Generation& generation,
                              AnswerFormat& format) {
  const std::chrono::milliseconds long_time{3'600'000};
  while (true) {
    generation.pump([](Generation::Running& running, size_t, Delta delta) {
      running.whole.append(std::move(delta));
    });
    if (generation.finished() || generation.error() != nullptr) break;
    co_await exchange.wait(long_time);
    if (exchange.gone()) co_return;
  }
  if (const std::string* error = generation.error()) {
    LOG_ERROR("a request failed in the engine: {}", *error);
    ApiError failed{Problem::kInternal, *error};
    co_await respond_error(exchange, std::move(failed));
    co_return;
  }
  if (generation.is_cut_off()) {
    ApiError late = shutting_down();
    co_await respond_error(exchange, std::move(late));
    co_return;
  }
  http::Response response;
  response.body = format.whole(generation.views(), generation.usage());
  co_await exchange.respond(std::move(response));
}

http::Task<void> begin_stream(http::Exchange& exchange) {
  http::StreamHead head;
  // Proxies must not collect the stream before they pass it on.
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  co_await exchange.begin_stream(std::move(head));
}

// The head goes out with the first token, so that what fails before is answered by its status; when
// that takes longer than ping_interval, with the first ping, so that nobody on the way gives up.
http::Task<void> answer_stream(Service& service, http::Exchange& exchange, Generation& generation,
                               AnswerFormat& format) {
  std::string out;
  while (!exchange.gone()) {
    generation.pump([&](Generation::Running& running, size_t index, const Delta& delta) {
      if (running.choice.finished() && running.choice.reason() == core::FinishReason::kError)
        return;
      format.append_delta(out, {index, running.choice, *running.prompt, delta},
                          generation.usage_of(running));
    });
    if (generation.is_cut_off() && !exchange.answered()) {
      ApiError late = shutting_down();
      co_await respond_error(exchange, std::move(late));
      co_return;
    }
    const std::string* error = generation.error();
    if (error != nullptr) {
      LOG_ERROR("a request failed in the engine: {}", *error);
      ApiError failed{Problem::kInternal, *error};
      if (out.empty() && !exchange.answered()) {
        co_await respond_error(exchange, std::move(failed));
        co_return;
      }
      format.append_error(out, failed);
    } else if (generation.finished()) {
      format.append_end(out, generation.usage());
    }
    const bool last = error != nullptr || generation.finished();
    if (!out.empty()) {
      if (!exchange.answered()) co_await begin_stream(exchange);
      if (!co_await exchange.write(out)) break;
      out.clear();
    }
    if (last) co_return;
    const bool woken = co_await exchange.wait(service.options().ping_interval);
    if (!woken) out = format.ping();
  }
  exchange.give_up();
}

// As JSON text, so that no byte of it can end the line.
void log_body(const Service& service, std::string_view body) {
  const int64_t bytes_max = service.options().log_prompt_bytes;
  if (bytes_max == 0) return;
  std::string text;
  append_json_string(text, body.substr(0, static_cast<size_t>(bytes_max)));
  LOG_INFO("body of {} bytes: {}", body.size(), text);
}

using Outcome = std::variant<Prepared, ApiError>;

// In the lane of grammars, so that nobody else waits for one. It takes long enough that a drain
// waits for it. REQUIRES: given.uncompiled.
http::Task<Outcome> compile(Service& service, http::Exchange& exchange, Prepared given) {
  struct Place {
    Service& service;
    Service::Generating::iterator at;
    ~Place() { service.end_generating(at); }
  };
  const Place place{service, service.begin_generating(exchange.waker())};
  const auto prepared = std::make_shared<Prepared>(std::move(given));
  std::function<Outcome(const std::stop_token&)> job =
      [&model = service.model(), prepared](const std::stop_token& stop) -> Outcome {
    if (Failure failure = compile_constraints(model, *prepared, stop)) return *std::move(failure);
    return std::move(*prepared);
  };
  auto outcome = co_await service.in_lane(exchange, TextWorkers::Lane::kGrammars, std::move(job));
  if (outcome) co_return *std::move(outcome);
  if (service.is_cut_off()) co_return shutting_down();
  co_return ApiError{Problem::kQueueFull,
                     "Too many grammars wait to be compiled; try again later."};
}

}  // namespace

http::Task<void> generate(Service& service, http::Exchange& exchange, Endpoint endpoint) {
  const int64_t arrival_us = exchange.request().arrival_us;
  const int64_t now_s = std::time(nullptr);
  log_body(service, exchange.request().body);
  std::function<Outcome(const std::string&)> job = [&model = service.model(), endpoint,
                                                    now_s](const std::string& body) {
    return prepare_generation(endpoint, body, model, now_s);
  };
  std::optional<Outcome> outcome = co_await service.on_worker(exchange, std::move(job));
  if (exchange.gone()) co_return;
  if (!outcome) {
    ApiError full = body_queue_full();
    co_await respond_error(exchange, std::move(full));
    co_return;
  }
  auto* read = std::get_if<Prepared>(&*outcome);
  if (read != nullptr && read->uncompiled) {
    outcome = co_await compile(service, exchange, std::move(*read));
    if (exchange.gone()) co_return;
  }
  if (auto* error = std::get_if<ApiError>(&*outcome)) {
    co_await respond_error(exchange, std::move(*error));
    co_return;
  }
  Generation generation(service, std::move(std::get<Prepared>(*outcome)),
                        RequestRecord::of(exchange), arrival_us, exchange.waker());
  if (auto error = generation.submit()) {
    co_await respond_error(exchange, *std::move(error));
    co_return;
  }
  const GenerateRequest& request = generation.prepared().request;
  const std::unique_ptr<AnswerFormat> format =
      make_answer_format(request, service.model(), service.random_hex(),
                         RequestRecord::of(exchange).request_id(), now_s);
  if (request.stream) {
    co_await answer_stream(service, exchange, generation, *format);
  } else {
    co_await answer_whole(exchange, generation, *format);
  }
}

}  // namespace api
