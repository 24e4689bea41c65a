#include "apps/completion.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "apps/progress.h"
#include "base/check.h"

namespace apps {
namespace {

struct Pending {
  std::shared_ptr<engine::EventStream> events;
  size_t prompt_tokens = 0;
};

base::Result<Pending> submit(engine::Engine& engine, core::Request request) {
  auto events = std::make_shared<engine::EventStream>(request, std::function<void()>());
  const size_t prompt_tokens = request.prompt.size();
  RETURN_IF_ERROR(engine.submit(std::move(request), events));
  return Pending{std::move(events), prompt_tokens};
}

base::Result<Completion> wait(const Pending& pending,
                              const std::function<void(core::TokenId)>& on_token) {
  Completion done;
  const int64_t begin_us = now_us();
  for (;;) {
    std::optional<engine::Event> event = pending.events->pop_for(std::chrono::seconds(1));
    if (!event) {
      const int64_t seconds = (now_us() - begin_us) / 1'000'000;
      if (done.tokens.empty() && seconds >= 2) {
        print_progress(
            fmt::format("computing a prompt of {} tokens: {} s", pending.prompt_tokens, seconds));
      }
      continue;
    }
    end_progress();
    switch (event->kind) {
      case engine::Event::Kind::kStarted:
        done.prompt_tokens = event->prompt_tokens;
        done.cached_tokens = event->cached_tokens;
        break;
      case engine::Event::Kind::kPrompt:
        break;
      case engine::Event::Kind::kToken:
        done.tokens.push_back(event->token);
        if (const auto& top = event->logprobs.top; top.size() > 1)
          done.margins.push_back(top[0].logprob - top[1].logprob);
        if (on_token) on_token(event->token);
        break;
      case engine::Event::Kind::kFinished:
        done.reason = event->reason;
        done.times = event->times;
        if (event->reason == core::FinishReason::kError)
          return base::error(base::Code::kInternal, "{}", event->error);
        if (event->reason == core::FinishReason::kAbort)
          return base::error(base::Code::kCancelled, "the engine is stopping");
        return done;
    }
  }
}

}  // namespace

base::Result<Completion> complete(engine::Engine& engine, core::Request request,
                                  const std::function<void(core::TokenId)>& on_token) {
  ASSIGN_OR_RETURN(Pending pending, submit(engine, std::move(request)));
  return wait(pending, on_token);
}

base::Result<std::vector<Completion>> complete_all(engine::Engine& engine,
                                                   std::vector<core::Request> requests,
                                                   std::span<const double> arrivals) {
  CHECK(arrivals.empty() || arrivals.size() == requests.size(), "{} arrivals of {} requests",
        arrivals.size(), requests.size());
  std::vector<Pending> pending;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!arrivals.empty())
      std::this_thread::sleep_until(begin + std::chrono::duration<double>(arrivals[i]));
    requests[i].arrival_us = now_us();
    ASSIGN_OR_RETURN(Pending one, submit(engine, std::move(requests[i])));
    pending.push_back(std::move(one));
  }
  std::vector<Completion> done;
  for (const Pending& one : pending) {
    ASSIGN_OR_RETURN(Completion completion, wait(one, {}));
    done.push_back(std::move(completion));
  }
  return done;
}

core::RequestId next_request_id() {
  static std::atomic<uint64_t> next{1};
  return core::RequestId{next.fetch_add(1)};
}

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace apps
