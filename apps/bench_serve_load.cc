#include "apps/bench_serve_load.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <deque>

#include "apps/bench_serve_answer.h"
#include "base/check.h"
#include "http/async_client.h"

// GCC 12 destroys non-trivial temporaries of a co_await expression twice in some cases: completion
// tokens and arguments are therefore named before they are awaited on.

namespace apps {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using http::Task;

// As long as the peer waits: a prompt may stand in a long queue.
constexpr std::chrono::hours kAnswerTimeout{6};
constexpr std::chrono::milliseconds kProgressEvery{200};
constexpr size_t kBarCells = 24;

// A connection is a file; the usual soft limit of 1024 is less than the usual number of prompts.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

class Load {
 public:
  explicit Load(const LoadPlan& plan)
      : plan_(plan),
        client_(asio_.get_executor(), plan.host, plan.port, kAnswerTimeout),
        progress_timer_(asio_),
        outcomes_(plan.requests.size()) {}

  base::Result<LoadResult> run() {
    RETURN_IF_ERROR(client_.resolve());
    raise_file_limit();
    start_ = Clock::now();
    asio::co_spawn(asio_, arrive_all(), asio::detached);
    if (plan_.show_progress) asio::co_spawn(asio_, show_progress(), asio::detached);
    asio_.run();
    CHECK(ended_ == outcomes_.size());
    return LoadResult{std::move(outcomes_), duration_s_};
  }

 private:
  struct Waiting {
    size_t idx;
    double arrival_s;
  };

  double now_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  Task<void> arrive_all() {
    asio::steady_timer timer(asio_);
    boost::system::error_code ec;
    auto token = asio::redirect_error(asio::use_awaitable, ec);
    for (size_t i = 0; i < outcomes_.size(); ++i) {
      const std::chrono::duration<double> at(plan_.arrivals_s[i]);
      timer.expires_at(start_ + std::chrono::duration_cast<Clock::duration>(at));
      if (at.count() > now_s()) co_await timer.async_wait(token);
      waiting_.push_back({i, now_s()});
      start_waiting();
    }
  }

  void start_waiting() {
    while (!waiting_.empty() && (plan_.max_concurrency == 0 || active_ < plan_.max_concurrency)) {
      ++active_;
      asio::co_spawn(asio_, answer(waiting_.front()), asio::detached);
      waiting_.pop_front();
    }
  }

  Task<void> answer(Waiting request) {
    const LoadRequest& sent = plan_.requests[request.idx];
    const http::Client::Call call{"POST", plan_.path, plan_.headers, sent.body};
    const SendTimes times{plan_.arrivals_s[request.idx], request.arrival_s, now_s()};
    AnswerReader reader(times, sent.input_tokens, plan_.keep_text);
    const http::AsyncClient::OnEvent on_event = [&](std::string_view data) {
      reader.take(data, now_s());
      return true;
    };
    const base::Result<http::Response> response = co_await client_.stream(call, on_event);
    duration_s_ = now_s();
    Outcome& outcome = outcomes_[request.idx] = reader.finish(response);
    failed_ += !outcome.ok();
    if (outcome.ok()) output_tokens_ += outcome.output_tokens;
    ++ended_;
    --active_;
    start_waiting();
    if (ended_ == outcomes_.size()) progress_timer_.cancel();
  }

  Task<void> show_progress() {
    boost::system::error_code ec;
    auto token = asio::redirect_error(asio::use_awaitable, ec);
    while (ended_ < outcomes_.size()) {
      const size_t done = ended_ * kBarCells / outcomes_.size();
      fmt::print(stderr, "\r[{:#<{}}{:.<{}}] {} of {}, {} running, {} failed, {:.1f} tok/s \033[K",
                 "", done, "", kBarCells - done, ended_, outcomes_.size(), active_, failed_,
                 static_cast<double>(output_tokens_) / std::max(now_s(), 1e-3));
      progress_timer_.expires_after(kProgressEvery);
      co_await progress_timer_.async_wait(token);
    }
    fmt::print(stderr, "\r\033[K");
  }

  const LoadPlan& plan_;
  asio::io_context asio_;
  http::AsyncClient client_;
  asio::steady_timer progress_timer_;
  Clock::time_point start_;
  std::deque<Waiting> waiting_;  // for max_concurrency
  int64_t active_ = 0, failed_ = 0, output_tokens_ = 0;
  size_t ended_ = 0;
  double duration_s_ = 0;
  std::vector<Outcome> outcomes_;
};

}  // namespace

base::Result<LoadResult> run_load(const LoadPlan& plan) {
  CHECK(plan.requests.size() == plan.arrivals_s.size());
  return Load(plan).run();
}

}  // namespace apps
