#include "engine/serving_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thread_name.h"

namespace engine {
namespace {

using core::FinishReason;

// An idle loop wakes this often to show that it is alive.
constexpr std::chrono::milliseconds kHeartbeat{100};
constexpr const char* kStepFailed =
    "the model could not be run for this request; it may succeed when sent again";
constexpr const char* kTooLong =
    "its prompt and max_tokens together are more than memory could be had for";
// How soon a loop looks again that waits for blocks.
constexpr std::chrono::milliseconds kBlocksPoll{5};

// Streaming heads change what every later layer computes, and so every page.
std::string describe_heads(const core::HeadKinds& heads) {
  std::string text;
  for (const core::HeadKind& kind : heads.kinds) {
    text += kind.is_streaming() ? fmt::format("{}+{},", kind.sink, kind.local) : "all,";
  }
  return text;
}

kv::LedgerOptions ledger_options(const EngineOptions& options, const ResolvedSizes& sizes,
                                 const std::string& fingerprint, const exec::Executor& executor) {
  const exec::Executor::ReadyBlocks ready = executor.ready_blocks();
  std::optional<int32_t> num_open;
  if (ready.is_growing || ready.count < sizes.num_blocks) {
    num_open = std::min(ready.count, sizes.num_blocks);
  }
  return {.num_blocks = sizes.num_blocks,
          .num_open = num_open,
          .page_tokens = sizes.page_tokens,
          .prefix_cache = options.prefix_cache,
          .deterministic = options.deterministic,
          .fingerprint = fmt::format("{}|{}|{}|{}", fingerprint, core::info(sizes.kv_type).name,
                                     sizes.page_tokens, describe_heads(options.heads)),
          .disk_records = executor.num_disk_records(),
          .residency_rate = options.residency_rate,
          .announces = options.kv_events != nullptr,
          .has_host_tier = sizes.num_frames > 0};
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

// An open-ended request takes what the context leaves, one token at least.
void clip(core::Request* request, int64_t prompt_len, int32_t context_max) {
  const int64_t room = context_max - prompt_len;
  if (!request->open_ended || request->sampling.max_tokens <= room || room < 1) return;
  request->sampling.max_tokens = static_cast<int32_t>(room);
}

bool runs_layers(const core::StepPlan& plan) {
  return !plan.segments.empty() && !plan.segments.back().activations.empty();
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
      plans_ahead_(options.async_scheduling && executor.is_asynchronous()),
      eos_(all_eos(options, model)),
      executor_(executor),
      clock_(std::move(clock)),
      mailbox_(options.inbox_capacity, options.inbox_tokens),
      context_max_(sizes.context_max),
      ledger_(ledger_options(options, sizes, fingerprint, executor)),
      scheduler_(scheduler_options(options, sizes, model), &ledger_),
      kv_events_(options.kv_events, &ledger_, &executor),
      saver_(ledger_, executor, sizes.block_bytes) {
  CHECK(ledger_.blocks_for(sizes.context_max) <= sizes.num_blocks, "{} blocks cannot hold {}",
        sizes.num_blocks, sizes.context_max);
  const auto seqs = static_cast<size_t>(sizes.max_num_seqs);
  const auto waiting = static_cast<size_t>(options.inbox_capacity);
  live_.reserve(seqs + waiting);
  mail_.arrivals.reserve(waiting);
  for (Turn& turn : turns_) {
    turn.outcomes.reserve(seqs + waiting);
    turn.plan.segments.reserve(seqs);
    turn.transfers.copies.reserve(seqs);
    turn.transfers.cuts.reserve(2 * seqs);
    turn.result.segments.reserve(seqs);
  }
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
    end_all();
  }
  mailbox_.retire();
}

void ServingEngine::loop() {
  base::name_this_thread("engine");
  while (!mailbox_.stop_requested()) {
    if (step()) continue;
    const bool waits = ledger_.is_growing() && !live_.empty();
    mailbox_.wait_for_mail(waits ? kBlocksPoll : kHeartbeat);
  }
  end_all();
  saving_ = false;
  mailbox_.retire();
}

// What is left has been told to abort: the first turn that reads it does, and its events may wait
// for another.
void ServingEngine::end_all() {
  do {
    step();
  } while (mailbox_.num_live() > 0);
}

base::Result<void> ServingEngine::submit(core::Request request, std::shared_ptr<EventStream> events,
                                         bool joins) {
  CHECK(events != nullptr);
  // The preset's attention unless the request has its own.
  if (request.policy.kind == core::AttentionPolicy::Kind::kDense && limits_.budget_max > 0) {
    request.policy = {core::AttentionPolicy::Kind::kSparse, limits_.budget_max};
  }
  RequestLimits limits = limits_;
  limits.context_max = context_max();
  clip(&request, std::ssize(request.prompt), limits.context_max);
  RETURN_IF_ERROR(check_request(request, limits));
  events->reserve();
  auto sequence = std::make_unique<LiveSequence>();
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_len = sequence->num_tokens();
  sequence->tokens.insert(sequence->tokens.end(), request.forced.begin(), request.forced.end());
  request.use_prefix_cache &= prefix_cache_;
  sequence->request = std::move(request);
  sequence->events = std::move(events);
  sequence->times.arrival_us = sequence->request.arrival_us;
  sequence->times.queued_us = clock_();
  return mailbox_.post(std::move(sequence), joins);
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
  if (mailbox_.num_live() == 0) return;
  mailbox_.abort_all();
  end_all();
}

void ServingEngine::save_cached(int64_t timeout_us) {
  saving_ = true;
  mailbox_.request_save(clock_() + timeout_us);
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
  snapshot.progress += executor_.progress();
  return snapshot;
}

// Steps that run beside this thread leave their events to the next turn, which publishes them when
// it has a step running; a turn that runs nothing leaves none.
bool ServingEngine::step() {
  spent_ = {};
  lap_us_ = clock_();
  ledger_.set_now(lap_us_);
  if (std::exchange(has_next_, false)) {
    ++counters_.steps_ahead;
  } else {
    receive();
    open_blocks();
    end_too_long();
    end_cancelled();
    plan(&now());
  }
  lap(&spent_.plan_us);
  // Prompts that run layer by layer are computed within submit().
  if (runs_layers(now().plan)) publish(&other());
  submit();
  lap(&spent_.submit_us);
  publish(&other());
  lap(&spent_.publish_us);
  if (can_plan_ahead()) plan_next();
  lap(&spent_.plan_us);
  finish();
  lap(&spent_.wait_us);
  commit();
  lap(&spent_.commit_us);
  const bool ran = now().ran;
  if (plans_ahead_ && ran) {
    current_ = 1 - current_;
  } else {
    publish(&now());
  }
  lap(&spent_.publish_us);
  if (ran) counters_.loop.add(spent_);
  return ran || save_some();
}

// When nothing else is left to do.
bool ServingEngine::save_some() {
  if (!saver_.is_running() || mailbox_.num_live() > 0) return false;
  saver_.step(clock_());
  if (!saver_.is_running()) saving_ = false;
  return true;
}

// Ends a phase of the loop.
void ServingEngine::lap(int64_t* total) {
  const int64_t now_us = clock_();
  *total += now_us - std::exchange(lap_us_, now_us);
}

void ServingEngine::receive() {
  mailbox_.take(&mail_);
  for (std::unique_ptr<LiveSequence>& arrival : mail_.arrivals) {
    arrival->id = core::SeqId{++sequences_received_};
    arrival->position = live_.size();
    scheduler_.enqueue(arrival.get());
    has_too_long_ |= is_too_long(*arrival);  // the limit fell behind its check
    live_.push_back(std::move(arrival));
  }
  mail_.arrivals.clear();
  if (const auto until_us = std::exchange(mail_.save_until_us, {})) {
    saver_.begin(clock_(), *until_us);
    if (!saver_.is_running()) saving_ = false;
  }
  if (mail_.reset_prefix_cache) {
    scheduler_.drop_cached();
    mailbox_.reset_done();
  }
}

// Between steps, and none is planned ahead.
void ServingEngine::open_blocks() {
  if (!ledger_.is_growing()) return;
  const exec::Executor::ReadyBlocks ready = executor_.ready_blocks();
  const int32_t count = std::min(ready.count, sizes_.num_blocks);
  if (count == ledger_.pool().num_total() && ready.is_growing) return;
  scheduler_.open_blocks(count, !ready.is_growing);
  ++counters_.progress;
  if (ready.is_growing || ledger_.blocks_for(sizes_.context_max) <= count) return;
  context_max_.store(count * sizes_.page_tokens, std::memory_order_relaxed);
  LOG_WARN(
      "requests of more than {} tokens, prompt and output, are refused: of {} blocks {} are there",
      context_max(), sizes_.num_blocks, count);
  has_too_long_ = std::ranges::any_of(live_, [&](const auto& s) { return is_too_long(*s); });
}

bool ServingEngine::is_too_long(const LiveSequence& s) const {
  return !s.ended && int64_t{s.prompt_len} + s.request.sampling.max_tokens > context_max();
}

// Those that no longer fit, were they alone; open-ended ones get as many tokens as do. Between
// steps.
void ServingEngine::end_too_long() {
  if (!std::exchange(has_too_long_, false)) return;
  for (const auto& sequence : live_) {
    clip(&sequence->request, sequence->prompt_len, context_max());
    const bool is_full = sequence->request.open_ended && !sequence->ended &&
                         sequence->num_generated() > 0 && sequence->num_tokens() >= context_max();
    if (!is_full && !is_too_long(*sequence)) continue;
    Outcome& outcome = add_outcome(sequence.get());
    if (!is_full) outcome.error = kTooLong;
    end(outcome, is_full ? FinishReason::kLength : FinishReason::kError);
  }
}

// Between steps: what runs is not taken away.
void ServingEngine::end_cancelled() {
  for (const core::RequestId id : mail_.cancels) {
    for (const auto& sequence : live_) {
      if (sequence->request.id == id) abort(sequence.get());
    }
  }
  mail_.cancels.clear();
  if (std::exchange(mail_.abort_all, false)) {
    for (const auto& sequence : live_) abort(sequence.get());
  }
}

void ServingEngine::abort(LiveSequence* sequence) {
  if (sequence->ended) return;  // asked for twice
  end(add_outcome(sequence), FinishReason::kAbort);
}

ServingEngine::Outcome& ServingEngine::add_outcome(LiveSequence* sequence,
                                                   const core::Segment* segment) {
  const bool is_first = !std::exchange(sequence->scheduled, true);
  if (is_first) {
    ++begun_.requests;
    begun_.tokens += sequence->prompt_len;
  }
  return now().outcomes.emplace_back(
      Outcome{.sequence = sequence, .segment = segment, .is_first = is_first});
}

// Who has begun, or ended, waits in the mailbox no longer.
void ServingEngine::settle() {
  if (begun_.requests > 0) mailbox_.settle(std::exchange(begun_, {}));
}

void ServingEngine::plan(Turn* turn) {
  scheduler_.plan(&turn->plan, &turn->transfers);
}

bool ServingEngine::can_plan_ahead() const {
  const Turn& turn = turns_[current_];
  return plans_ahead_ && turn.ran && !turn.failed && !ledger_.is_growing() &&
         scheduler_.can_run_ahead(turn.transfers);
}

void ServingEngine::plan_next() {
  receive();
  scheduler_.run_ahead();
  plan(&other());
  has_next_ = true;
}

void ServingEngine::submit() {
  Turn& turn = now();
  begin(&turn);
  settle();
  refresh_snapshot();
  live_view_.refresh(
      {.scheduler = &scheduler_, .ledger = &ledger_, .executor = &executor_, .plan = &turn.plan},
      counters_.engine_heartbeat_us);
  if (!turn.ran) return;
  ++counters_.steps;
  const auto submitted = executor_.submit(turn.plan, turn.transfers, &turn.result);
  if (!submitted.ok()) note_failure(submitted.error().message);
}

void ServingEngine::begin(Turn* turn) {
  turn->failed = false;
  // A step without rows still moves blocks to and from the disk, and rows of frames.
  turn->ran = !turn->plan.segments.empty() || !turn->transfers.empty() || scheduler_.is_fetching();
  reset_result(turn);
  const int64_t now_us = clock_();
  for (size_t i = 0; i < turn->plan.segments.size(); ++i) {
    auto* sequence = static_cast<LiveSequence*>(scheduler_.planned()[i]);
    if (add_outcome(sequence, &turn->plan.segments[i]).is_first) {
      sequence->times.scheduled_us = now_us;
    }
  }
}

void ServingEngine::finish() {
  Turn& turn = now();
  if (!turn.ran || turn.failed) return;
  if (const auto finished = executor_.finish(); !finished.ok()) {
    return note_failure(finished.error().message);
  }
  counters_.rows_run += turn.plan.num_rows;
  if (!turn.plan.segments.empty()) {
    counters_.step_sizes.tokens.observe(turn.plan.num_rows);
    counters_.step_sizes.sequences.observe(std::ssize(turn.plan.segments));
    if (sizes_.num_frames > 0) {
      counters_.step_sizes.pages_loaded.observe(turn.result.kv.pages_loaded);
    }
  }
  CHECK(turn.result.segments.size() == turn.plan.segments.size(), "{} results for {} segments",
        turn.result.segments.size(), turn.plan.segments.size());
}

void ServingEngine::note_failure(const std::string& why) {
  Turn& turn = now();
  turn.failed = true;
  LOG_ERROR("step {} with {} sequences failed: {}", turn.plan.step, turn.plan.segments.size(), why);
}

// What an executor only writes when there is something to say.
void ServingEngine::reset_result(Turn* turn) {
  core::StepResult& result = turn->result;
  result.step = turn->plan.step;
  result.kv = {};
  result.lost.clear();
  result.fetched.clear();
  result.unwritten.clear();
  for (core::SegmentResult& segment : result.segments) {
    segment.error.clear();
    segment.working_set_frames = 0;
  }
}

void ServingEngine::commit() {
  const Turn& turn = now();
  // Not a step that only waits for the disk.
  counters_.progress += !turn.plan.segments.empty() || !turn.result.fetched.empty();
  scheduler_.commit_disk(turn.result);
  if (turn.failed) {
    scheduler_.step_failed(turn.transfers, has_next_ ? &other().transfers : nullptr);
  }
  // Before others are committed, so that nobody adopts a lost block.
  drop_lost();
  if (turn.failed) {
    fail_step();
  } else {
    commit_step();
    scheduler_.note_loads(turn.transfers);
  }
  kv_events_.tell();
  if (has_next_) {
    end_too_long();
    end_cancelled();
    has_next_ = scheduler_.amend(&other().plan, &other().transfers);
  }
  settle();
  refresh_snapshot();
}

void ServingEngine::commit_step() {
  const int64_t now_us = clock_();
  counters_.kv.add(now().result.kv);
  counters_.working_set_frames = 0;
  size_t i = 0;
  for (Outcome& outcome : now().outcomes) {
    if (outcome.segment == nullptr) continue;
    core::SegmentResult& result = now().result.segments[i++];
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
  for (Outcome& outcome : now().outcomes) {
    if (outcome.segment != nullptr && !outcome.reason) end(outcome, FinishReason::kError);
  }
  for (const auto& sequence : live_) {
    if (sequence->ended || !sched::Scheduler::is_cut(*sequence, now().transfers)) continue;
    end(add_outcome(sequence.get()), FinishReason::kError);
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
  const std::vector<core::BlockId>& lost = now().result.lost;
  if (lost.empty()) return;
  const auto holds_lost = [&](const LiveSequence& s) {
    return !s.ended && std::ranges::find_first_of(s.kv.blocks, lost) != s.kv.blocks.end();
  };
  constexpr const char* kWhat = "its pages did not reach their homes";
  for (Outcome& outcome : now().outcomes) {
    if (holds_lost(*outcome.sequence)) fail(outcome, kWhat);
  }
  for (const auto& sequence : live_) {  // those that were not in the step
    if (holds_lost(*sequence)) fail(add_outcome(sequence.get()), kWhat);
  }
  for (const core::BlockId block : lost) scheduler_.drop(block);
}

void ServingEngine::commit_outcome(Outcome& outcome, int64_t now_us) {
  LiveSequence& s = *outcome.sequence;
  const core::SegmentResult& result = *outcome.result;
  CHECK(result.seq == s.id && result.sampled == outcome.segment->sample,
        "the result is of sequence {}, sampled {}", core::number(result.seq), result.sampled);
  if (outcome.is_first) {
    counters_.prompt_tokens += s.prompt_len;
    counters_.prompt_tokens_cached += s.cached_tokens;
    counters_.prompt_tokens_disk += s.disk_tokens;
  }
  scheduler_.commit(&s, result.working_set_frames);
  s.events->add_pages({result.pages_selected, result.pages_missed});
  if (result.sampled) {
    CHECK(result.token >= 0 && result.token < limits_.vocab_size, "token {} of {}", result.token,
          limits_.vocab_size);
    s.take_token(result.token);
    if (s.request.constraint != nullptr) outcome.next = s.request.constraint->accept(result.token);
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
  if (outcome.next == core::TokenConstraint::Next::kFault) {
    outcome.reason = FinishReason::kError;
    outcome.error = s.request.constraint->fault().c_str();
    return;
  }
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
  if (outcome.next == core::TokenConstraint::Next::kMustEnd) {
    outcome.reason = FinishReason::kStop;
  } else if (!s.in_prompt() && s.num_generated() >= sampling.max_tokens) {
    outcome.reason = FinishReason::kLength;
  }
}

// Gives back what the sequence holds; its kFinished follows in publish().
void ServingEngine::end(Outcome& outcome, FinishReason reason) {
  LiveSequence& s = *outcome.sequence;
  outcome.reason = reason;
  s.ended = true;
  s.times.finished_us = clock_();
  if (has_next_) scheduler_.spoil_loads(other().transfers, s);
  if (reason == FinishReason::kError) {
    scheduler_.remove_failed(&s, now().transfers);
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
void ServingEngine::publish(Turn* turn) {
  int32_t ended = 0;
  for (Outcome& outcome : turn->outcomes) {
    LiveSequence& s = *outcome.sequence;
    push_events(outcome);
    if (!outcome.reason) continue;
    ++ended;
    std::swap(live_[s.position], live_.back());
    live_[s.position]->position = s.position;
    live_.pop_back();  // `s` is gone
  }
  turn->outcomes.clear();
  if (ended > 0) mailbox_.account_ended(ended);
}

void ServingEngine::push_events(Outcome& outcome) {
  LiveSequence& s = *outcome.sequence;
  if (outcome.result != nullptr) {
    const core::Segment& segment = *outcome.segment;
    core::SegmentResult& result = *outcome.result;
    if (outcome.is_first) {
      s.events->push({.kind = Event::Kind::kStarted,
                      .prompt_tokens = s.prompt_len,
                      .cached_tokens = s.cached_tokens,
                      .disk_tokens = s.disk_tokens,
                      .times = s.times});
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
                  .error = outcome.reason != FinishReason::kError ? ""
                           : outcome.error != nullptr             ? outcome.error
                                                                  : kStepFailed,
                  .preemptions = s.preemptions,
                  .times = s.times});
}

void ServingEngine::refresh_snapshot() {
  const kv::BlockPool& pool = ledger_.pool();
  const sched::SchedulerCounters& scheduled = scheduler_.counters();
  counters_.requests_running = std::ssize(scheduler_.running());
  counters_.requests_waiting = std::ssize(scheduler_.waiting());
  counters_.requests_preempted = scheduler_.num_preempted();
  counters_.blocks_total = pool.num_total();
  counters_.blocks_free = pool.num_free();
  counters_.blocks_in_use = pool.num_in_use();
  counters_.blocks_cached = pool.num_cached();
  counters_.prefix_cache_queries = scheduled.prefix_tokens_queried;
  counters_.prefix_cache_hits = scheduled.prefix_tokens_found;
  counters_.disk_cache_queries = scheduled.disk_tokens_queried;
  counters_.disk_cache_hits = scheduled.disk_tokens_found;
  counters_.requests_put_back = scheduler_.num_put_back();
  counters_.requests_deferred = scheduler_.num_deferred();
  counters_.preemptions = scheduled.preemptions;
  counters_.blocks_grown = scheduled.blocks_grown;
  counters_.tokens_recomputed = scheduled.tokens_recomputed;
  counters_.residency = ledger_.residency();
  counters_.put_back = scheduled.put_back;
  counters_.frames_total = scheduler_.frames().num_total();
  counters_.frames_free = scheduler_.frames().num_free();
  counters_.frames_shared = scheduler_.frames().num_shared();
  counters_.kv_events = kv_events_.counters();
  counters_.engine_heartbeat_us = clock_();
  std::lock_guard lock(snapshot_mutex_);
  snapshot_ = counters_;
}

void ServingEngine::check_integrity() const {
  scheduler_.check_integrity();
}

}  // namespace engine
