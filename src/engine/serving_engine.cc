#include "engine/serving_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace engine {
namespace {

using core::FinishReason;

// An idle loop wakes this often to show that it is alive.
constexpr std::chrono::milliseconds kHeartbeat{100};
constexpr const char* kStepFailed =
    "the model could not be run for this request; it may succeed when sent again";

// Streaming heads change what every later layer computes, and so every page.
std::string describe_heads(const core::HeadKinds& heads) {
  std::string text;
  for (const core::HeadKind& kind : heads.kinds) {
    text += kind.is_streaming() ? fmt::format("{}+{},", kind.sink, kind.local) : "all,";
  }
  return text;
}

kv::LedgerOptions ledger_options(const EngineOptions& options, const ResolvedSizes& sizes,
                                 const std::string& fingerprint, uint64_t disk_records) {
  return {.num_blocks = sizes.num_blocks,
          .page_tokens = sizes.page_tokens,
          .prefix_cache = options.prefix_cache,
          .deterministic = options.deterministic,
          .fingerprint = fmt::format("{}|{}|{}|{}", fingerprint, core::info(sizes.kv_type).name,
                                     sizes.page_tokens, describe_heads(options.heads)),
          .disk_records = disk_records};
}

sched::TierSizes tier_sizes(const EngineOptions& options, const ResolvedSizes& sizes,
                            const core::ModelConfig& model) {
  if (sizes.num_frames == 0) return {};
  const auto columns =
      core::KvColumns::retrieval(model.num_layers, model.num_kv_heads, options.heads);
  return {.num_frames = sizes.num_frames,
          .num_columns = columns.num_columns(),
          .layer_columns_max = columns.layer_columns_max(),
          .activation_pages = sizes.activation_pages,
          .admission = options.tiers.admission,
          .prefill = options.tiers.prefill};
}

// Streaming heads that keep rings have one for each sequence that runs.
int32_t num_slots(const ResolvedSizes& sizes) {
  return sizes.num_rings > 0 ? std::min(sizes.max_num_seqs, sizes.num_rings) : sizes.max_num_seqs;
}

sched::SchedulerOptions scheduler_options(const EngineOptions& options, const ResolvedSizes& sizes,
                                          const core::ModelConfig& model) {
  return {.max_num_seqs = num_slots(sizes),
          .max_num_batched_tokens = sizes.max_num_batched_tokens,
          .num_layers = model.num_layers,
          .deterministic = options.deterministic,
          // A quantised page cannot be written on.
          .copies_heads =
              options.kv_type != core::DType::kI8 && options.kv_type != core::DType::kF8E4M3,
          .chunk_tokens = options.tiers.chunk_tokens,
          .max_inject_tokens = options.tiers.max_inject_tokens,
          .tier = tier_sizes(options, sizes, model)};
}

RequestLimits request_limits(const EngineOptions& options, const ResolvedSizes& sizes,
                             const core::ModelConfig& model) {
  return {.vocab_size = model.vocab_size,
          .page_tokens = sizes.page_tokens,
          .context_max = sizes.context_max,
          .prompt_max = sched::prompt_tokens_max(tier_sizes(options, sizes, model),
                                                 sizes.page_tokens, sizes.context_max),
          .budget_max = options.sparse.budget_tokens};
}

std::vector<core::TokenId> all_eos(const EngineOptions& options, const core::ModelConfig& model) {
  std::vector<core::TokenId> eos = model.eos;
  eos.insert(eos.end(), options.eog_tokens.begin(), options.eog_tokens.end());
  std::ranges::sort(eos);
  return eos;
}

}  // namespace

int64_t monotonic_us() {
  using std::chrono::microseconds;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<microseconds>(now).count();
}

std::unique_ptr<ServingEngine> make_engine(const EngineOptions& options, const ResolvedSizes& sizes,
                                           const core::ModelConfig& model, exec::Executor& executor,
                                           const std::string& fingerprint, Clock clock) {
  return std::make_unique<ServingEngine>(options, sizes, model, executor, fingerprint,
                                         std::move(clock));
}

ServingEngine::ServingEngine(const EngineOptions& options, const ResolvedSizes& sizes,
                             const core::ModelConfig& model, exec::Executor& executor,
                             const std::string& fingerprint, Clock clock)
    : sizes_(sizes),
      limits_(request_limits(options, sizes, model)),
      prefix_cache_(options.prefix_cache),
      eos_(all_eos(options, model)),
      executor_(executor),
      clock_(std::move(clock)),
      mailbox_(options.inbox_capacity),
      ledger_(ledger_options(options, sizes, fingerprint, executor.num_disk_records())),
      scheduler_(scheduler_options(options, sizes, model), &ledger_) {
  CHECK(ledger_.blocks_for(sizes.context_max) <= sizes.num_blocks, "{} blocks cannot hold {}",
        sizes.num_blocks, sizes.context_max);
  const auto seqs = static_cast<size_t>(sizes.max_num_seqs);
  const auto waiting = static_cast<size_t>(options.inbox_capacity);
  live_.reserve(seqs + waiting);
  outcomes_.reserve(seqs + waiting);
  mail_.arrivals.reserve(waiting);
  plan_.segments.reserve(seqs);
  transfers_.copies.reserve(seqs);
  transfers_.cuts.reserve(2 * seqs);
  result_.segments.reserve(seqs);
  executor_.take_disk_entries([this](const core::DiskEntry& entry) {
    if (ledger_.disk() != nullptr) ledger_.disk()->restore(entry);
  });
  refresh_snapshot();
}

ServingEngine::~ServingEngine() {
  stop();
}

void ServingEngine::start() {
  CHECK(!started_, "start() twice");
  started_ = true;
  thread_ = std::thread([this] { loop(); });
}

void ServingEngine::stop() {
  mailbox_.request_stop();
  if (thread_.joinable()) {
    thread_.join();
  } else if (!started_) {
    step();
  }
  mailbox_.retire();
}

void ServingEngine::loop() {
  while (!mailbox_.stop_requested()) {
    if (!step()) mailbox_.wait_for_mail(kHeartbeat);
  }
  step();  // aborts what is left
  mailbox_.retire();
}

base::Result<void> ServingEngine::submit(core::Request request,
                                         std::shared_ptr<EventStream> events) {
  CHECK(events != nullptr);
  // The preset's attention unless the request has its own.
  if (request.policy.kind == core::AttentionPolicy::Kind::kDense && limits_.budget_max > 0) {
    request.policy = {core::AttentionPolicy::Kind::kSparse, limits_.budget_max};
  }
  RETURN_IF_ERROR(check_request(request, limits_));
  events->reserve();
  auto sequence = std::make_unique<LiveSequence>();
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_len = sequence->num_tokens();
  sequence->tokens.insert(sequence->tokens.end(), request.forced.begin(), request.forced.end());
  request.use_prefix_cache &= prefix_cache_;
  sequence->request = std::move(request);
  sequence->events = std::move(events);
  sequence->times.arrival_us = sequence->request.arrival_us;
  return mailbox_.post(std::move(sequence));
}

void ServingEngine::cancel(core::RequestId id) {
  mailbox_.cancel(id);
}

void ServingEngine::drain(int64_t timeout_us) {
  mailbox_.close();
  if (started_) {
    if (mailbox_.wait_until_empty(std::chrono::microseconds(timeout_us))) return;
    mailbox_.abort_all();
    // The step that runs now ends first; the next one aborts.
    while (!mailbox_.wait_until_empty(std::chrono::seconds(1))) {
    }
    return;
  }
  const int64_t deadline_us = clock_() + timeout_us;
  while (mailbox_.num_live() > 0 && clock_() < deadline_us) step();
  if (mailbox_.num_live() > 0) mailbox_.abort_all();
  if (mailbox_.num_live() > 0) step();
}

void ServingEngine::reset_prefix_cache() {
  if (started_) {
    mailbox_.request_reset();
    mailbox_.wait_for_reset();
  } else {
    scheduler_.drop_cached();
    refresh_snapshot();
  }
}

core::EngineSnapshot ServingEngine::snapshot() const {
  const Mailbox::Counts counts = mailbox_.counts();
  std::lock_guard lock(snapshot_mutex_);
  core::EngineSnapshot snapshot = snapshot_;
  snapshot.requests_waiting += counts.unread;
  snapshot.requests_refused = counts.refused;
  return snapshot;
}

// The four visible calls.
bool ServingEngine::step() {
  turn_ = {};
  lap_us_ = clock_();
  receive();
  plan();
  lap(&turn_.plan_us);
  run();
  commit();
  lap(&turn_.commit_us);
  publish();
  lap(&turn_.publish_us);
  if (ran_) counters_.loop.add(turn_);
  return ran_;
}

// Ends a phase of the loop.
void ServingEngine::lap(int64_t* total) {
  const int64_t now_us = clock_();
  *total += now_us - std::exchange(lap_us_, now_us);
}

void ServingEngine::receive() {
  outcomes_.clear();
  mailbox_.take(&mail_);
  for (std::unique_ptr<LiveSequence>& arrival : mail_.arrivals) {
    arrival->id = core::SeqId{++sequences_received_};
    arrival->position = live_.size();
    scheduler_.enqueue(arrival.get());
    live_.push_back(std::move(arrival));
  }
  mail_.arrivals.clear();
  for (const core::RequestId id : mail_.cancels) {
    for (const auto& sequence : live_) {
      if (sequence->request.id == id) abort(sequence.get());
    }
  }
  mail_.cancels.clear();
  if (mail_.abort_all) {
    for (const auto& sequence : live_) abort(sequence.get());
  }
  if (mail_.reset_prefix_cache) {
    scheduler_.drop_cached();
    mailbox_.reset_done();
  }
}

void ServingEngine::abort(LiveSequence* sequence) {
  if (sequence->ended) return;  // asked for twice
  outcomes_.push_back({.sequence = sequence});
  end(outcomes_.back(), FinishReason::kAbort);
}

void ServingEngine::plan() {
  scheduler_.plan(&plan_, &transfers_);
  const int64_t now_us = clock_();
  for (size_t i = 0; i < plan_.segments.size(); ++i) {
    auto* sequence = static_cast<LiveSequence*>(scheduler_.planned()[i]);
    const bool first_step = !sequence->scheduled;
    if (first_step) sequence->times.scheduled_us = now_us;
    outcomes_.push_back(
        {.sequence = sequence, .segment = &plan_.segments[i], .first_step = first_step});
  }
  refresh_snapshot();
}

void ServingEngine::run() {
  step_failed_ = false;
  // A step without rows still moves blocks to and from the disk.
  const bool has_disk_work =
      scheduler_.is_fetching() || !transfers_.spills.empty() || !transfers_.fetches.empty();
  reset_result();
  ran_ = !plan_.segments.empty() || has_disk_work;
  if (!ran_) return;
  ++counters_.steps;
  auto ran = executor_.submit(plan_, transfers_, &result_);
  lap(&turn_.submit_us);
  if (ran.ok()) ran = executor_.finish();
  lap(&turn_.wait_us);
  if (!ran.ok()) {
    step_failed_ = true;
    LOG_ERROR("step {} with {} sequences failed: {}", plan_.step, plan_.segments.size(),
              ran.error().message);
    return;
  }
  counters_.rows_run += plan_.num_rows;
  CHECK(result_.segments.size() == plan_.segments.size(), "{} results for {} segments",
        result_.segments.size(), plan_.segments.size());
}

// What an executor only writes when there is something to say.
void ServingEngine::reset_result() {
  result_.step = plan_.step;
  result_.kv = {};
  result_.lost.clear();
  result_.fetched.clear();
  result_.unwritten.clear();
  for (core::SegmentResult& segment : result_.segments) {
    segment.error.clear();
    segment.working_set_frames = 0;
  }
}

void ServingEngine::commit() {
  scheduler_.commit_disk(result_);
  if (step_failed_) scheduler_.step_failed(transfers_);
  // Before others are committed, so that nobody adopts a lost block.
  drop_lost();
  if (step_failed_) {
    fail_step();
  } else {
    commit_step();
  }
  refresh_snapshot();
}

void ServingEngine::commit_step() {
  const int64_t now_us = clock_();
  counters_.kv.add(result_.kv);
  counters_.working_set_frames = 0;
  size_t i = 0;
  for (Outcome& outcome : outcomes_) {
    if (outcome.segment == nullptr) continue;
    core::SegmentResult& result = result_.segments[i++];
    counters_.working_set_frames += result.working_set_frames;
    if (outcome.reason) continue;  // it held a lost block
    if (!result.error.empty()) {
      fail(outcome, result.error);
      continue;
    }
    outcome.result = &result;
    commit_outcome(outcome, now_us);
  }
}

// The planned sequences fail, and those whose frames the step was to cut: what the device still has
// of them is not known.
void ServingEngine::fail_step() {
  for (Outcome& outcome : outcomes_) {
    if (outcome.segment != nullptr && !outcome.reason) end(outcome, FinishReason::kError);
  }
  for (const auto& sequence : live_) {
    if (sequence->ended || !sched::Scheduler::is_cut(*sequence, transfers_)) continue;
    outcomes_.push_back({.sequence = sequence.get()});
    end(outcomes_.back(), FinishReason::kError);
  }
}

void ServingEngine::fail(Outcome& outcome, const std::string& what) {
  ++counters_.transfers_failed;
  LOG_ERROR("a transfer of request {} failed: {}", core::number(outcome.sequence->request.id),
            what);
  end(outcome, FinishReason::kError);
}

// Who holds a block holds all that it stands on, so once the holders of the lost ones are gone
// nobody holds what stands on those.
void ServingEngine::drop_lost() {
  if (result_.lost.empty()) return;
  const auto holds_lost = [&](const LiveSequence& s) {
    return !s.ended && std::ranges::find_first_of(s.kv.blocks, result_.lost) != s.kv.blocks.end();
  };
  constexpr const char* kWhat = "its pages did not reach their homes";
  for (Outcome& outcome : outcomes_) {
    if (holds_lost(*outcome.sequence)) fail(outcome, kWhat);
  }
  for (const auto& sequence : live_) {  // those that were not in the step
    if (!holds_lost(*sequence)) continue;
    outcomes_.push_back({.sequence = sequence.get()});
    fail(outcomes_.back(), kWhat);
  }
  for (const core::BlockId block : result_.lost) scheduler_.drop(block);
}

void ServingEngine::commit_outcome(Outcome& outcome, int64_t now_us) {
  LiveSequence& s = *outcome.sequence;
  const core::SegmentResult& result = *outcome.result;
  CHECK(result.seq == s.id && result.sampled == outcome.segment->sample,
        "the result is of sequence {}, sampled {}", core::number(result.seq), result.sampled);
  if (outcome.first_step) {
    counters_.prompt_tokens += s.prompt_len;
    counters_.prompt_tokens_cached += s.cached_tokens;
  }
  scheduler_.commit(&s, result.working_set_frames);
  if (result.sampled) {
    CHECK(result.token >= 0 && result.token < limits_.vocab_size, "token {} of {}", result.token,
          limits_.vocab_size);
    CHECK(s.tokens.size() < s.tokens.capacity(), "the tokens would move");
    s.tokens.push_back(result.token);
    if (s.times.first_token_us == 0) s.times.first_token_us = now_us;
    s.times.last_token_us = now_us;
    ++counters_.generated_tokens;
  }
  check_finished(outcome);
  if (outcome.reason) end(outcome, *outcome.reason);
}

// Sets the reason if the sequence is complete. The context limit needs no rule: submit() refuses
// what could reach it.
void ServingEngine::check_finished(Outcome& outcome) const {
  const LiveSequence& s = *outcome.sequence;
  const core::SamplingParams& sampling = s.request.sampling;
  if (outcome.result->sampled && s.num_generated() >= sampling.min_tokens) {
    const core::TokenId token = outcome.result->token;
    if (!sampling.ignore_eos && std::ranges::binary_search(eos_, token)) {
      outcome.reason = FinishReason::kStop;
      return;
    }
    if (std::ranges::find(sampling.stop_token_ids, token) != sampling.stop_token_ids.end()) {
      outcome.reason = FinishReason::kStop;
      outcome.stop_token = token;
      return;
    }
  }
  if (!s.in_prompt() && s.num_generated() >= sampling.max_tokens) {
    outcome.reason = FinishReason::kLength;
  }
}

// Gives back what the sequence holds; its kFinished follows in publish().
void ServingEngine::end(Outcome& outcome, FinishReason reason) {
  LiveSequence& s = *outcome.sequence;
  outcome.reason = reason;
  s.ended = true;
  s.times.finished_us = clock_();
  if (reason == FinishReason::kError) {
    scheduler_.remove_failed(&s, transfers_);
  } else {
    scheduler_.remove(&s);
  }
  switch (reason) {
    case FinishReason::kStop:
      ++counters_.requests_finished_stop;
      return;
    case FinishReason::kLength:
      ++counters_.requests_finished_length;
      return;
    case FinishReason::kAbort:
      ++counters_.requests_aborted;
      return;
    case FinishReason::kError:
      ++counters_.requests_failed;
      return;
  }
}

// Events last: who reads one finds it in the snapshot already.
void ServingEngine::publish() {
  int32_t settled = 0;
  int32_t ended = 0;
  for (Outcome& outcome : outcomes_) {
    LiveSequence& s = *outcome.sequence;
    push_events(outcome);
    settled += !s.scheduled;
    s.scheduled = true;
    if (!outcome.reason) continue;
    ++ended;
    std::swap(live_[s.position], live_.back());
    live_[s.position]->position = s.position;
    live_.pop_back();  // `s` is gone
  }
  outcomes_.clear();
  if (settled + ended > 0) mailbox_.account(settled, ended);
}

void ServingEngine::push_events(Outcome& outcome) {
  LiveSequence& s = *outcome.sequence;
  if (outcome.result != nullptr) {
    const core::Segment& segment = *outcome.segment;
    core::SegmentResult& result = *outcome.result;
    if (outcome.first_step) {
      s.events->push({.kind = Event::Kind::kStarted,
                      .prompt_tokens = s.prompt_len,
                      .cached_tokens = s.cached_tokens});
    }
    const int32_t positions = std::min(segment.token_end, s.prompt_len - 1) - segment.logits_begin;
    if (s.request.sampling.prompt_logprobs && positions > 0) {
      CHECK(std::ssize(result.prompt) == positions,
            "log-probabilities of {} positions, expected {}", result.prompt.size(), positions);
      s.events->push({.kind = Event::Kind::kPrompt,
                      .prompt_begin = segment.logits_begin + 1,
                      .prompt = std::move(result.prompt)});
    }
    if (result.sampled) {
      s.events->push({.kind = Event::Kind::kToken,
                      .token = result.token,
                      .has_logprobs = result.has_logprobs,
                      .logprobs = std::move(result.logprobs)});
    }
  }
  if (!outcome.reason) return;
  s.events->push({.kind = Event::Kind::kFinished,
                  .reason = *outcome.reason,
                  .stop_token = outcome.stop_token,
                  .error = outcome.reason == FinishReason::kError ? kStepFailed : "",
                  .preemptions = s.preemptions,
                  .times = s.times});
}

void ServingEngine::refresh_snapshot() {
  const kv::BlockPool& pool = ledger_.pool();
  const sched::SchedulerCounters& scheduled = scheduler_.counters();
  counters_.requests_running = std::ssize(scheduler_.running());
  counters_.requests_waiting = std::ssize(scheduler_.waiting());
  counters_.blocks_total = pool.num_total();
  counters_.blocks_free = pool.num_free();
  counters_.blocks_in_use = pool.num_in_use();
  counters_.blocks_cached = pool.num_cached();
  counters_.prefix_cache_queries = scheduled.prefix_tokens_queried;
  counters_.prefix_cache_hits = scheduled.prefix_tokens_found;
  counters_.preemptions = scheduled.preemptions;
  counters_.put_back = scheduled.put_back;
  counters_.frames_total = scheduler_.frames().num_total();
  counters_.frames_free = scheduler_.frames().num_free();
  counters_.frames_shared = scheduler_.frames().num_shared();
  counters_.engine_heartbeat_us = clock_();
  std::lock_guard lock(snapshot_mutex_);
  snapshot_ = counters_;
}

void ServingEngine::check_integrity() const {
  scheduler_.check_integrity();
}

}  // namespace engine
