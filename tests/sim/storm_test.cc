// Goal: no storm of requests makes the serving brain wrong. Method: the real engine, scheduler and
// KV bookkeeping over a simulated executor that checks every page it reads (sim_executor.h; with a
// host tier tiered_executor.h) and a simulated clock. A seed decides everything: sizes, tiers,
// prompts that share prefixes, salts, arrivals, cancellations, cache resets, slow and failing
// transfers and disks, device failures. After every step all invariants are checked; what
// each request streamed is compared with the oracle, and the index that a subscriber makes of the
// KV-cache events with the books; at the end nothing may be left.
//
// SPILLWAY_SIM_SEED=n runs seed n alone, with its trace.
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "base/log.h"
#include "engine/serving_engine.h"
#include "exec/beside_executor.h"
#include "sim/block_index.h"
#include "sim/sim_executor.h"
#include "sim/tiered_executor.h"

namespace sim {
namespace {

using core::FinishReason;
using core::TokenId;
using engine::Event;

constexpr int kSeeds = 2000;
constexpr int kTurns = 250;
constexpr int32_t kVocab = 40;
constexpr TokenId kEos = 0;
constexpr TokenId kStop = 1;

uint64_t g_seed = 0;

void print_seed(int) {
  std::fprintf(stderr, "failing seed: %llu\n", static_cast<unsigned long long>(g_seed));
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

// What all seeds did together: a mechanism that never ran was not tested.
struct Coverage {
  int64_t preemptions = 0, hits = 0, rows_copied = 0, decode_replays = 0, aborted = 0, failed = 0;
  int64_t stopped = 0, length = 0, refused = 0, tagged = 0, prompt_logprobs = 0, steps = 0;
  int64_t put_back = 0, transfers_failed = 0, shared = 0, ahead = 0, ended_short = 0;
  int64_t clipped = 0, grown = 0, recomputed = 0;
  int64_t events = 0, compared = 0;
  std::array<int64_t, 3> entries{};  // of indexes that were compared, by medium
  core::KvCounters kv;
};

struct Setup {
  engine::EngineOptions options;
  engine::ResolvedSizes sizes;
  core::ModelConfig model;
  int vocab_prompt = 0;  // prompts draw from few tokens, so that they share heads of blocks
  double arrivals = 0, cancels = 0, failures = 0, resets = 0, transfer_failures = 0;
  uint64_t disk_records = 0;
  double disk_failures = 0;
  int prompt_max = 0;
  int blocks_begin = 0, blocks_end = 0;  // that are there at first, and when no more come
  bool beside = false;                   // steps run beside the engine, which plans ahead
  bool tiered() const { return sizes.num_frames > 0; }
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int range(int min, int max) {  // both included; the same on every standard library
    return min + static_cast<int>(random_() % static_cast<uint64_t>(max - min + 1));
  }
  bool chance(double p) { return static_cast<double>(random_() % 1000000) < p * 1e6; }

 private:
  std::mt19937_64 random_;
};

// Frames for one sequence at least, and seldom for all.
void draw_tiers(Dice& dice, Setup* s) {
  s->model.num_layers = dice.chance(0.1) ? 1 : dice.range(2, 5);
  s->model.num_kv_heads = dice.range(1, 2);
  core::TierOptions& tiers = s->options.tiers;
  tiers.prefill = dice.chance(0.7) ? core::Prefill::kLayer : core::Prefill::kChunked;
  tiers.admission = dice.chance(0.7) ? core::Admission::kWorkingSet : core::Admission::kNone;
  tiers.chunk_tokens = dice.range(1, 100);
  tiers.max_inject_tokens = dice.chance(0.3) ? 0 : dice.range(1, 300);
  tiers.working_set_window = dice.range(1, 12);
  s->options.sparse.budget_tokens = dice.chance(0.1) ? 0 : s->sizes.page_tokens * dice.range(2, 6);
  s->sizes.num_frames = dice.range(2, dice.chance(0.7) ? 20 : 80);
  s->sizes.activation_pages = dice.range(1, dice.chance(0.5) ? 8 : 60);
  s->transfer_failures = dice.chance(0.6) ? 0 : 0.002;
  if (dice.chance(0.6)) s->disk_records = static_cast<uint64_t>(dice.range(1, 80));
  s->disk_failures = dice.chance(0.5) ? 0 : 0.05;
}

Setup draw_setup(Dice& dice) {
  Setup s;
  s.options.prefix_cache = dice.chance(0.9);
  s.options.deterministic = dice.chance(0.5);
  s.options.inbox_capacity = dice.range(2, 24);
  if (dice.chance(0.2)) s.options.inbox_tokens = dice.range(1, 200);
  s.model.vocab_size = kVocab;
  s.model.num_layers = 2;
  s.model.eos = {kEos};
  s.sizes.page_tokens = 1 << dice.range(0, 4);
  s.sizes.num_blocks = dice.range(3, dice.chance(0.5) ? 12 : 60);
  const bool tiered = dice.chance(0.6);
  if (tiered) s.sizes.num_blocks += dice.range(0, 60);
  const int tokens_max = s.sizes.num_blocks * s.sizes.page_tokens;
  s.sizes.context_max = std::max(2, dice.chance(0.5) ? tokens_max : tokens_max / 2);
  s.sizes.max_num_seqs = dice.range(1, 8);
  s.sizes.max_num_batched_tokens = s.sizes.max_num_seqs + dice.range(0, 40);
  if (tiered) draw_tiers(dice, &s);
  s.prompt_max = s.sizes.context_max;
  if (s.tiered()) {
    s.prompt_max =
        sched::prompt_tokens_max({.num_frames = s.sizes.num_frames,
                                  .num_columns = s.model.num_layers * s.model.num_kv_heads,
                                  .layer_columns_max = s.model.num_kv_heads,
                                  .activation_pages = s.sizes.activation_pages,
                                  .prefill = s.options.tiers.prefill},
                                 s.sizes.page_tokens, s.sizes.context_max);
  }
  s.vocab_prompt = dice.range(1, 4);
  s.arrivals = dice.range(5, 90) / 100.0;
  s.cancels = dice.chance(0.7) ? 0.05 : 0.3;
  s.failures = dice.chance(0.5) ? 0 : 0.02;
  s.resets = 0.02;
  s.beside = dice.chance(0.5);
  s.blocks_begin = s.blocks_end = s.sizes.num_blocks;
  if (dice.chance(0.3)) {
    s.blocks_end = dice.chance(0.5) ? s.sizes.num_blocks : dice.range(1, s.sizes.num_blocks);
    s.blocks_begin = dice.range(1, s.blocks_end);
  }
  return s;
}

// Undisturbed: who asks what and what is answered follow from the seed alone.
Setup undisturbed(Setup s, bool beside) {
  s.options.inbox_capacity = 1000;
  s.options.inbox_tokens = 0;
  s.arrivals = std::min(s.arrivals, 0.4);
  s.cancels = s.failures = s.resets = s.transfer_failures = s.disk_failures = 0;
  s.beside = beside;
  s.blocks_begin = s.blocks_end = s.sizes.num_blocks;
  return s;
}

std::unique_ptr<StormExecutor> make_executor(const Setup& s, uint64_t seed) {
  const ExecutorOptions base{.num_blocks = s.sizes.num_blocks,
                             .page_tokens = s.sizes.page_tokens,
                             .max_num_seqs = s.sizes.max_num_seqs,
                             .max_num_batched_tokens = s.sizes.max_num_batched_tokens,
                             .vocab_size = kVocab,
                             .kinds_count = s.options.deterministic};
  std::unique_ptr<StormExecutor> made;
  if (!s.tiered())
    made = std::make_unique<SimExecutor>(base);
  else
    made = std::make_unique<TieredExecutor>(
        TieredOptions{.base = base,
                      .num_frames = s.sizes.num_frames,
                      .num_layers = s.model.num_layers,
                      .layer_columns = s.model.num_kv_heads,
                      .activation_pages = s.sizes.activation_pages,
                      .working_set_window = s.options.tiers.working_set_window,
                      .seed = seed,
                      .load_failures = s.transfer_failures,
                      .save_failures = s.transfer_failures,
                      .disk_records = s.disk_records,
                      .disk_failures = s.disk_failures});
  made->set_ready({s.blocks_begin, s.blocks_begin < s.blocks_end});
  return made;
}

class Storm {
 public:
  // `beside`: an undisturbed one, in which steps run beside the engine, or not.
  explicit Storm(uint64_t seed, std::optional<bool> beside = std::nullopt)
      : dice_(seed),
        setup_(beside ? undisturbed(draw_setup(dice_), *beside) : draw_setup(dice_)),
        is_undisturbed_(beside.has_value()),
        executor_(make_executor(setup_, seed)),
        beside_(*executor_),
        event_dice_(seed + 1),
        engine_(
            engine::make_engine(with_events(setup_.options), setup_.sizes, setup_.model,
                                setup_.beside ? beside_ : static_cast<exec::Executor&>(*executor_),
                                "sim", [this] { return now_us_; })) {}

  void run(Coverage* coverage) {
    for (int turn = 0; turn < kTurns; ++turn) {
      while (dice_.chance(setup_.arrivals) && !HasFailure()) submit_one();
      if (dice_.chance(setup_.cancels)) cancel_one();
      if (dice_.chance(setup_.failures)) executor_->fail_next();
      if (dice_.chance(setup_.resets)) engine_->reset_prefix_cache();
      step();
      if (HasFailure()) return;
    }
    drain();
    const core::EngineSnapshot s = engine_->snapshot();
    coverage->preemptions += s.preemptions;
    coverage->hits += s.prefix_cache_hits;
    coverage->rows_copied += executor_->rows_copied();
    coverage->decode_replays += executor_->decode_replays();
    coverage->aborted += s.requests_aborted;
    coverage->failed += s.requests_failed;
    coverage->stopped += s.requests_finished_stop;
    coverage->length += s.requests_finished_length;
    coverage->refused += s.requests_refused;
    coverage->steps += s.steps;
    coverage->tagged += tagged_;
    coverage->prompt_logprobs += prompt_logprobs_;
    coverage->put_back += s.put_back;
    coverage->transfers_failed += s.transfers_failed;
    coverage->shared += shared_;
    coverage->ahead += s.steps_ahead;
    coverage->ended_short += short_;
    coverage->clipped += clipped_;
    coverage->grown += s.blocks_grown;
    coverage->recomputed += s.tokens_recomputed;
    coverage->events += s.kv_events.stored + s.kv_events.removed;
    coverage->compared += compared_;
    for (size_t i = 0; i < 3; ++i) coverage->entries[i] += entries_[i];
    coverage->kv.add(s.kv);
  }

  const std::string& trace() const { return trace_; }
  // What each request was answered, by its number.
  const std::map<uint64_t, std::vector<TokenId>>& answers() const { return answers_; }

 private:
  struct Client {
    core::Request request;
    Oracle oracle;
    std::shared_ptr<engine::EventStream> events;
    std::vector<TokenId> received;
    int32_t prompt_positions = 0;
    bool started = false;
    bool cancelled = false;
  };

  static bool HasFailure() { return ::testing::Test::HasFailure(); }

  std::vector<TokenId> draw_prompt() {
    const int max = setup_.sizes.context_max;
    std::vector<TokenId> prompt;
    if (!texts_.empty() && !is_undisturbed_ &&
        dice_.chance(0.7)) {  // what somebody asked or got before, or its head
      prompt = texts_[static_cast<size_t>(dice_.range(0, static_cast<int>(texts_.size()) - 1))];
      if (dice_.chance(0.5))
        prompt.resize(static_cast<size_t>(dice_.range(0, static_cast<int>(prompt.size()))));
    }
    const int tail = dice_.chance(0.2) ? dice_.range(0, max) : dice_.range(0, std::max(1, max / 8));
    for (int i = 0; i < tail; ++i) prompt.push_back(2 + dice_.range(0, setup_.vocab_prompt - 1));
    if (prompt.empty()) prompt.push_back(2);
    return prompt;
  }

  core::Request draw_request() {
    core::Request r;
    r.id = core::RequestId{++requests_};
    r.prompt = draw_prompt();
    r.cache_salt = std::string(static_cast<size_t>(dice_.range(0, 2)), 's');
    r.use_prefix_cache = dice_.chance(0.9);
    r.arrival_us = now_us_;
    r.sampling.temperature = 0;
    r.sampling.seed = r.cache_salt.size();
    const int room = setup_.sizes.context_max - static_cast<int>(r.prompt.size());
    r.sampling.max_tokens = std::max(0, dice_.chance(0.5) ? dice_.range(0, 8) : room);
    r.open_ended = r.sampling.max_tokens == room && dice_.chance(0.3);
    r.sampling.min_tokens = dice_.chance(0.2) ? dice_.range(0, 6) : 0;
    r.sampling.ignore_eos = dice_.chance(0.2);
    if (dice_.chance(0.3)) r.sampling.stop_token_ids = {kStop};
    if (dice_.chance(0.15)) r.sampling.prompt_logprobs = 0;
    if (dice_.chance(0.15)) r.sampling.logprobs = 0;
    return r;
  }

  void submit_one() {
    Client client;
    client.request = draw_request();
    client.oracle = oracle(client.request, kVocab, setup_.options.deterministic);
    client.events = std::make_shared<engine::EventStream>(client.request, nullptr);
    const int64_t total = std::ssize(client.request.prompt) + client.request.sampling.max_tokens;
    // Those count as waiting until their first step is told.
    const core::EngineSnapshot before = engine_->snapshot();
    const int64_t waiting = before.requests_waiting + (setup_.beside ? before.requests_running : 0);
    const auto submitted = engine_->submit(client.request, client.events);
    trace("submit {} {} {}\n", core::number(client.request.id), total, submitted.ok());
    if (!fits_context(client.request)) {
      ASSERT_FALSE(submitted.ok());
      ASSERT_EQ(submitted.error().code, base::Code::kTooLarge);
      return;
    }
    if (std::ssize(client.request.prompt) > setup_.prompt_max) {
      ASSERT_FALSE(submitted.ok());
      ASSERT_EQ(submitted.error().code, base::Code::kTooLarge);
      return;
    }
    if (!submitted.ok()) {
      ASSERT_EQ(submitted.error().code, base::Code::kOverloaded);
      // The bound on tokens alone lets nobody in beside one that waits.
      ASSERT_GE(waiting, setup_.options.inbox_tokens > 0 ? 1 : setup_.options.inbox_capacity);
      return;
    }
    clients_.emplace(core::number(client.request.id), std::move(client));
  }

  // Open-ended ones need room for a token.
  bool fits_context(const core::Request& r) const {
    return std::ssize(r.prompt) +
               (r.open_ended ? std::min(1, r.sampling.max_tokens) : r.sampling.max_tokens) <=
           engine_->context_max();
  }

  void cancel_one() {
    if (clients_.empty()) return engine_->cancel(core::RequestId{12345678});
    auto it = clients_.begin();
    std::advance(it, dice_.range(0, static_cast<int>(clients_.size()) - 1));
    it->second.cancelled = true;
    engine_->cancel(it->second.request.id);
    if (dice_.chance(0.2)) engine_->cancel(it->second.request.id);
    trace("cancel {}\n", it->first);
  }

  void step() {
    now_us_ += dice_.range(1, 1000);
    const int64_t steps = engine_->snapshot().steps;
    const bool fetching = engine_->scheduler().is_fetching();
    grow_blocks();
    const bool ran = engine_->step();
    ASSERT_EQ(engine_->snapshot().steps, steps + ran);
    engine_->check_integrity();
    tagged_ += engine_->ledger().index().num_generated();
    if (setup_.options.deterministic) {
      ASSERT_EQ(engine_->ledger().index().num_generated(), 0);
    }
    for (const sched::Sequence* s : engine_->scheduler().running()) {
      const std::pair admission(core::number(s->id), s->preemptions);
      const auto [known, is_new] = slots_.emplace(admission, s->slot.value());
      ASSERT_EQ(known->second, *s->slot);
      // Who was admitted ahead has not run yet.
      if (!setup_.beside || !is_new) executor_->check_pages(*s);
      shared_ += std::ssize(s->device.shared);
    }
    check_tags();
    check_nobody_is_forgotten(ran, fetching);
    read_events();
    check_index();
    trace("step {} free {} cached {} rows {}\n", steps, engine_->ledger().pool().num_free(),
          engine_->ledger().pool().num_cached(), engine_->scheduler().frames().num_free());
  }

  engine::EngineOptions with_events(engine::EngineOptions options) {
    options.kv_events = &index_;
    return options;
  }

  // A subscriber knows what the books say, unless they say that it has to be told something yet.
  // Rows of a plan that was made ahead may have to be loaded first.
  void check_index() {
    const kv::BlockLedger& ledger = engine_->ledger();
    if (!ledger.announcer()->has_news()) {
      Books books{.ledger = &ledger, .running = engine_->scheduler().running()};
      if (setup_.tiered()) books.frames = &engine_->scheduler().frames();
      std::vector<core::BlockId> saving;
      executor_->list_saving(&saving);
      books.saving.insert(saving.begin(), saving.end());
      std::set<BlockIndex::Entry> expected = entries_of(books);
      if (setup_.beside) {
        std::erase_if(expected, [&](const BlockIndex::Entry& entry) {
          return entry.first == core::KvMedium::kDevice && !index_.entries().contains(entry);
        });
      }
      ASSERT_EQ(index_.entries(), expected);
      ++compared_;
      for (const auto& [medium, key] : expected) ++entries_[static_cast<size_t>(medium)];
    }
    index_.set_room(event_dice_.chance(0.7) ? 1000 : event_dice_.range(0, 5));
    if (event_dice_.chance(0.02)) index_.ask_to_restate();
  }

  // Some of the blocks that are still to come.
  void grow_blocks() {
    const exec::Executor::ReadyBlocks ready = executor_->ready_blocks();
    if (!ready.is_growing || !dice_.chance(0.1)) return;
    const int count = ready.count + dice_.range(0, setup_.blocks_end - ready.count);
    executor_->set_ready({count, count < setup_.blocks_end});
  }

  // A block without the tag holds what any prompt would have made.
  void check_tags() {
    const kv::PrefixIndex& index = engine_->ledger().index();
    for (int32_t i = 0; i < setup_.sizes.num_blocks; ++i) {
      const core::BlockId block{i};
      if (!index.contains(block) || index.generated(block)) continue;
      ASSERT_TRUE(executor_->is_prompt_made(block)) << "block " << i << " hides generated rows";
    }
  }

  // The oldest unfinished sequence gets rows in every step: then each becomes the oldest and ends.
  // But for steps in which reads from disk hold the blocks that it lacks: they end; and but for one
  // that was planned before an older one ended.
  void check_nobody_is_forgotten(bool ran, bool fetching) {
    const auto& scheduler = engine_->scheduler();
    const bool idle = scheduler.running().empty() && scheduler.waiting().empty();
    if (idle) return;
    const bool growing = executor_->ready_blocks().is_growing;
    ASSERT_TRUE(ran || growing);
    if (scheduler.running().empty()) return;
    const sched::Sequence* oldest = scheduler.running().front();
    const auto known = progress_.find(core::number(oldest->id));
    const auto& layers = oldest->layers;
    const std::array now{oldest->num_tokens(), oldest->computed, layers ? layers->layer : 0,
                         layers ? layers->token : 0};
    if (known != progress_.end()) {
      const bool stands = now == known->second;
      ASSERT_TRUE(now > known->second || ((fetching || growing) && stands) ||
                  (setup_.beside && stands && !stood_))
          << "the oldest, " << core::number(oldest->id) << ", stands still";
      stood_ = stands;
    } else {
      stood_ = false;
    }
    progress_.clear();
    progress_[core::number(oldest->id)] = now;
  }

  void read_events() {
    for (auto it = clients_.begin(); it != clients_.end();) {
      bool finished = false;
      while (auto event = it->second.events->try_pop()) {
        ASSERT_FALSE(finished) << "an event after kFinished";
        finished = read_event(it->second, *event);
        if (HasFailure()) return;
      }
      it = finished ? clients_.erase(it) : std::next(it);
    }
  }

  // True for the last event.
  bool read_event(Client& c, const Event& event) {
    trace("event {} {} {}\n", core::number(c.request.id), static_cast<int>(event.kind),
          event.token);
    switch (event.kind) {
      case Event::Kind::kStarted:
        EXPECT_FALSE(c.started);
        EXPECT_EQ(event.prompt_tokens, std::ssize(c.request.prompt));
        EXPECT_LT(event.cached_tokens, event.prompt_tokens);
        if (!c.request.use_prefix_cache || c.request.sampling.prompt_logprobs) {
          EXPECT_EQ(event.cached_tokens, 0);
        }
        c.started = true;
        return false;
      case Event::Kind::kPrompt:
        EXPECT_EQ(event.prompt_begin, c.prompt_positions + 1);
        for (const core::PositionLogprobs& p : event.prompt) {
          const auto i = static_cast<size_t>(c.prompt_positions++);
          EXPECT_EQ(p.token.token, c.request.prompt.at(i + 1));
          EXPECT_EQ(p.token.logprob, c.oracle.prompt_logprobs.at(i));
          ++prompt_logprobs_;
        }
        return false;
      case Event::Kind::kToken:
        EXPECT_TRUE(c.started);
        EXPECT_EQ(event.token, c.oracle.generated.at(c.received.size()));
        EXPECT_EQ(event.has_logprobs, c.request.sampling.logprobs.has_value());
        if (event.has_logprobs) {
          EXPECT_EQ(event.logprobs.token.token, event.token);
        }
        c.received.push_back(event.token);
        return false;
      case Event::Kind::kFinished:
        check_end(c, event);
        return true;
    }
    return false;
  }

  struct End {
    size_t length = 0;
    FinishReason reason = FinishReason::kLength;
    std::optional<TokenId> stop_token;
  };
  // Where the stop rules, and the context, end the oracle's tokens.
  End expected_end(const Client& c) {
    const core::SamplingParams& sampling = c.request.sampling;
    size_t limit = c.oracle.generated.size();
    if (c.request.open_ended) {
      // A token may have been drawn that has no row in the context which then fell short.
      const int64_t room = engine_->context_max() - std::ssize(c.request.prompt);
      const bool drawn = std::ssize(c.received) == room + 1;
      clipped_ += room < std::ssize(c.oracle.generated);
      limit = std::min(limit, static_cast<size_t>(std::max<int64_t>(0, room + drawn)));
    }
    End end;
    while (end.length < limit && end.reason == FinishReason::kLength) {
      const TokenId token = c.oracle.generated[end.length++];
      if (static_cast<int>(end.length) < sampling.min_tokens) continue;
      if (token == kEos && !sampling.ignore_eos) end.reason = FinishReason::kStop;
      if (token == kStop && !sampling.stop_token_ids.empty()) {
        end.reason = FinishReason::kStop;
        end.stop_token = token;
      }
    }
    return end;
  }

  void check_end(const Client& c, const Event& event) {
    const core::SamplingParams& sampling = c.request.sampling;
    if (event.reason == FinishReason::kAbort) {
      EXPECT_TRUE(c.cancelled || draining_);
      return;
    }
    if (event.reason == FinishReason::kError) {
      EXPECT_FALSE(event.error.empty());
      EXPECT_TRUE(setup_.failures + setup_.transfer_failures > 0 || !fits_context(c.request));
      short_ += !fits_context(c.request);
      return;
    }
    const End end = expected_end(c);
    EXPECT_EQ(c.received.size(), end.length);
    EXPECT_EQ(event.reason, end.reason);
    EXPECT_EQ(event.stop_token, end.stop_token);
    if (sampling.prompt_logprobs) {
      EXPECT_EQ(c.prompt_positions, std::ssize(c.request.prompt) - 1);
    }
    EXPECT_GE(event.times.scheduled_us, event.times.arrival_us);
    EXPECT_GE(event.times.finished_us, event.times.last_token_us);
    answers_[core::number(c.request.id)] = c.received;
    std::vector<TokenId> text = c.request.prompt;
    text.insert(text.end(), c.received.begin(), c.received.end());
    if (texts_.size() > 6) texts_.erase(texts_.begin());
    texts_.push_back(std::move(text));
  }

  void drain() {
    draining_ = !is_undisturbed_ && dice_.chance(0.3);
    if (draining_) {
      engine_->drain(0);
      read_events();
    }
    // Alone, each of those left needs at most one step a token, replays after preemptions aside;
    // they overlap.
    const auto is_busy = [&] { return !clients_.empty() || engine_->scheduler().is_fetching(); };
    for (int i = 0; is_busy() && i < 100 * setup_.sizes.context_max; ++i) {
      step();
      if (HasFailure()) return;
    }
    ASSERT_TRUE(clients_.empty()) << clients_.size() << " requests never end";
    const core::EngineSnapshot s = engine_->snapshot();
    ASSERT_EQ(s.requests_running + s.requests_waiting, 0);
    ASSERT_EQ(s.blocks_in_use, 0);
    ASSERT_EQ(s.blocks_free + s.blocks_cached, s.blocks_total);
    engine_->reset_prefix_cache();
    ASSERT_EQ(engine_->snapshot().blocks_free, s.blocks_total);
    ASSERT_EQ(engine_->snapshot().frames_free, engine_->snapshot().frames_total);
    ASSERT_EQ(engine_->ledger().index().num_roots(), 0);
    engine_->check_integrity();
  }

  template <typename... Args>
  void trace(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(trace_), format, std::forward<Args>(args)...);
  }

  Dice dice_;
  const Setup setup_;
  const bool is_undisturbed_;
  std::unique_ptr<StormExecutor> executor_;
  exec::BesideExecutor beside_;
  Dice event_dice_;  // its own, so that requests are the same with and without events
  BlockIndex index_;
  int64_t now_us_ = 1;
  std::unique_ptr<engine::ServingEngine> engine_;
  std::map<uint64_t, Client> clients_;
  std::map<uint64_t, std::array<int32_t, 4>> progress_;
  std::map<std::pair<uint64_t, int32_t>, int32_t> slots_;  // by sequence and admission
  std::vector<std::vector<TokenId>> texts_;
  std::map<uint64_t, std::vector<TokenId>> answers_;
  uint64_t requests_ = 0;
  int64_t tagged_ = 0;
  int64_t compared_ = 0;  // indexes, with the books
  std::array<int64_t, 3> entries_{};
  int64_t prompt_logprobs_ = 0;
  int64_t clipped_ = 0;  // open-ended answers that the context ended earlier than thought
  int64_t shared_ = 0;   // pages in shared rows, over all steps
  int64_t short_ = 0;    // requests that what came of the blocks does not hold
  bool draining_ = false;
  bool stood_ = false;  // the oldest, in the last step
  std::string trace_;
};

class StormTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGABRT, print_seed);
    ASSERT_TRUE(base::set_log_level("off").ok());
  }
};

TEST_F(StormTest, NothingIsWrongOrLeftUnderAnySeed) {
  uint64_t begin = 0, end = kSeeds;
  const char* one = std::getenv("SPILLWAY_SIM_SEED");
  if (one != nullptr) {
    begin = std::strtoull(one, nullptr, 10);
    end = begin + 1;
  }
  Coverage coverage;
  for (g_seed = begin; g_seed < end; ++g_seed) {
    SCOPED_TRACE(fmt::format("failing seed: {}", g_seed));
    Storm storm(g_seed);
    storm.run(&coverage);
    if (one != nullptr) std::fputs(storm.trace().c_str(), stdout);
    if (HasFailure()) return;
  }
  if (one != nullptr) return;
  for (const auto& [what, count] : std::initializer_list<std::pair<const char*, int64_t>>{
           {"steps", coverage.steps},
           {"preemptions", coverage.preemptions},
           {"prefix hits", coverage.hits},
           {"rows copied", coverage.rows_copied},
           {"decode replays", coverage.decode_replays},
           {"aborted", coverage.aborted},
           {"failed", coverage.failed},
           {"stopped", coverage.stopped},
           {"ended by length", coverage.length},
           {"refused", coverage.refused},
           {"tagged blocks", coverage.tagged},
           {"prompt log-probabilities", coverage.prompt_logprobs},
           {"put back", coverage.put_back},
           {"failed transfers", coverage.transfers_failed},
           {"pages in shared rows", coverage.shared},
           {"planned ahead", coverage.ahead},
           {"blocks ended short", coverage.ended_short},
           {"ended by a short context", coverage.clipped},
           {"blocks grown", coverage.grown},
           {"tokens recomputed", coverage.recomputed},
           {"events of blocks", coverage.events},
           {"indexes compared", coverage.compared},
           {"blocks known on the device", coverage.entries[0]},
           {"blocks known at home", coverage.entries[1]},
           {"blocks known on disk", coverage.entries[2]},
           {"pages missed", coverage.kv.pages_missed},
           {"pages evicted", coverage.kv.pages_evicted},
           {"pages in scratch", coverage.kv.pages_scratch},
           {"pages saved", coverage.kv.pages_saved},
           {"layers segmented", coverage.kv.layers_segmented},
           {"pages to disk", coverage.kv.disk_pages_written},
           {"pages from disk", coverage.kv.disk_pages_read},
           {"failures of the disk", coverage.kv.disk_failures}}) {
    std::printf("%-26s %lld\n", what, static_cast<long long>(count));
    EXPECT_GT(count, 500) << what << " hardly happened";
  }
}

TEST_F(StormTest, OneSeedIsOneRun) {
  for (g_seed = 0; g_seed < 40; ++g_seed) {
    Coverage coverage;
    Storm a(g_seed), b(g_seed);
    a.run(&coverage);
    b.run(&coverage);
    ASSERT_EQ(a.trace(), b.trace()) << "seed " << g_seed;
  }
}

TEST_F(StormTest, PlanningAheadChangesNoAnswer) {
  Coverage in_turn, beside;
  for (g_seed = 0; g_seed < 150; ++g_seed) {
    SCOPED_TRACE(fmt::format("failing seed: {}", g_seed));
    Storm a(g_seed, false), b(g_seed, true);
    a.run(&in_turn);
    b.run(&beside);
    if (HasFailure()) return;
    ASSERT_EQ(a.answers(), b.answers());
  }
  EXPECT_EQ(in_turn.ahead, 0);
  EXPECT_GT(beside.ahead, 5000);
}

}  // namespace
}  // namespace sim
