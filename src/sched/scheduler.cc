#include "sched/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace sched {
namespace {

bool is_older(const Sequence* a, const Sequence* b) {
  return a->id < b->id;
}

bool is_decoding(const Sequence* s) {
  return !s->in_prompt();
}

SchedulerOptions with_defaults(SchedulerOptions options, int32_t page_tokens) {
  if (options.max_inject_tokens == 0)
    options.max_inject_tokens = 2048 * int64_t{options.num_layers};
  // A row of all layers and a page of one layer can always run.
  options.max_inject_tokens =
      std::max<int64_t>({options.max_inject_tokens, options.num_layers, page_tokens});
  if (options.tier.prefill == core::Prefill::kLayer) {
    options.chunk_tokens = kAllPages;
  } else {
    options.max_inject_tokens = std::numeric_limits<int64_t>::max();
  }
  options.copies_heads &= !options.tier.tiered();
  return options;
}

}  // namespace

int32_t extent_blocks(int32_t num_blocks, int32_t page_tokens) {
  constexpr int32_t kExtentTokens = 256;
  return std::clamp(num_blocks / 64, 1, std::max(1, kExtentTokens / page_tokens));
}

Scheduler::Scheduler(const SchedulerOptions& options, kv::BlockLedger* ledger)
    : options_(with_defaults(options, ledger->page_tokens())),
      extent_tokens_(extent_blocks(ledger->pool().num_max(), ledger->page_tokens()) *
                     ledger->page_tokens()),
      ledger_(ledger),
      frames_(options.tier, options.max_num_seqs, ledger),
      fetches_(ledger) {
  CHECK(options.max_num_seqs > 0 && options.max_num_batched_tokens >= options.max_num_seqs,
        "{} sequences, {} rows a step", options.max_num_seqs, options.max_num_batched_tokens);
  const auto seqs = static_cast<size_t>(options.max_num_seqs);
  running_.reserve(seqs);
  planned_.reserve(seqs);
  put_back_.reserve(seqs + kLookAheadMax);
  slots_free_.reserve(seqs);
  for (int32_t i = options.max_num_seqs; i-- > 0;) slots_free_.push_back(i);
}

void Scheduler::enqueue(Sequence* sequence) {
  CHECK(sequence->prompt_len > 0 && sequence->num_tokens() >= sequence->prompt_len);
  CHECK(waiting_.empty() || is_older(waiting_.back(), sequence), "ids must rise with arrival");
  waiting_.push_back(sequence);
}

void Scheduler::plan(core::StepPlan* plan, core::TransferPlan* transfers) {
  plan->clear();
  transfers->clear();
  planned_.clear();
  put_back_.clear();
  num_put_back_ = 0;
  youngest_started_ = youngest_admitted_ = core::SeqId{};
  Budget budget{.rows = options_.max_num_batched_tokens -
                        static_cast<int32_t>(std::ranges::count_if(running_, is_decoding)),
                .prompt_rows = options_.chunk_tokens,
                .inject = options_.max_inject_tokens};
  CHECK(budget.rows >= 0);
  if (tiered()) frames_.begin_step(running_);
  const int64_t preemptions_before = counters_.preemptions;
  continue_running(&budget);
  if (counters_.preemptions == preemptions_before) admit_waiting(&budget, transfers);
  youngest_started_ = std::max(youngest_started_, youngest_admitted_);
  count_overtaken();
  if (tiered()) frames_.give(running_, transfers);
  ledger_->take_spills(&transfers->spills);
  plan->step = ++step_;
  emit(plan);
  if (tiered() && plan->segments.empty()) frames_.keep_cuts(transfers);
}

// Gives every running sequence its rows, oldest first.
void Scheduler::continue_running(Budget* budget) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    CHECK(s.planned.empty(), "sequence {} was not committed", core::number(s.id));
    const int32_t set_aside = s.in_prompt() ? 0 : 1;
    const RowRange wanted = rows_of(s, *budget, set_aside);
    if (wanted.empty()) continue;
    const bool starts = tiered() && !s.device.pinned;
    if ((starts && budget->blocked) || (tiered() && !frames_.charge(s, i == 0))) {
      budget->rows += set_aside;
      put_back(s, budget);
      continue;
    }
    s.planned = grow_for_rows(s, wanted);
    while (s.planned.empty()) {
      if (ledger_->is_growing()) break;
      // Victims have no rows yet: they come later in this loop.
      const bool itself = running_.back() == &s;
      // Alone, and blocks are being read into: they can be had when their reads have ended.
      if (itself && i == 0 && !fetches_.empty()) return;
      CHECK(!itself || i > 0, "sequence {} alone does not fit the pool", core::number(s.id));
      if (is_decoding(running_.back())) ++budget->rows;
      preempt_youngest();
      if (itself) return;
      s.planned = grow_for_rows(s, wanted);
    }
    if (s.planned.empty()) {  // blocks for it will come
      budget->rows += set_aside;
      continue;
    }
    if (starts) youngest_started_ = s.id;
    spend(s, budget, set_aside);
  }
}

// The rows of the sequence's present kind that it could run now: of the rest of its prompt, or of
// its generated tokens without a row.
RowRange Scheduler::rows_of(const Sequence& s, const Budget& budget, int32_t set_aside) const {
  if (s.layers) return layers_of(s, budget);
  const int32_t pending = (s.in_prompt() ? s.prompt_len : s.num_tokens()) - s.computed;
  CHECK(pending > 0, "sequence {} has nothing to run", core::number(s.id));
  int32_t rows = std::min(pending, budget.rows + set_aside);
  if (s.in_prompt()) {
    rows = std::min(rows, budget.prompt_rows);
    rows = static_cast<int32_t>(std::min<int64_t>(rows, budget.inject / options_.num_layers));
  } else if (tiered()) {
    // Only the page being filled need have a frame before its home is written.
    rows = std::min(rows, ledger_->page_tokens() - s.computed % ledger_->page_tokens());
  }
  return {0, options_.num_layers, s.computed, s.computed + rows};
}

RowRange Scheduler::layers_of(const Sequence& s, const Budget& budget) const {
  int64_t work = std::min(budget.inject, int64_t{budget.rows} * options_.num_layers);
  if (!budget.has_layers) work = std::max<int64_t>(work, ledger_->page_tokens());
  return s.layers->next(ledger_->page_tokens(), work);
}

void Scheduler::spend(const Sequence& s, Budget* budget, int32_t set_aside) {
  const int64_t work = s.planned.work();
  if (s.layers) {
    const int64_t rows = (work + options_.num_layers - 1) / options_.num_layers;
    budget->rows = static_cast<int32_t>(std::max<int64_t>(0, budget->rows - rows));
    budget->has_layers = true;
  } else {
    budget->rows -= s.planned.rows() - set_aside;
  }
  if (!s.in_prompt()) return;
  budget->prompt_rows -= s.planned.rows();
  budget->inject = std::max<int64_t>(0, budget->inject - work);
}

// Reserves blocks for as many of the rows as can be had; returns those. A prompt that runs layer by
// layer has all its blocks.
RowRange Scheduler::grow_for_rows(Sequence& s, RowRange rows) {
  if (s.layers) return rows;
  const int64_t blocks_max = std::ssize(s.kv.blocks) + ledger_->num_available();
  const int64_t rows_max = blocks_max * ledger_->page_tokens() - s.computed;
  rows.token_end =
      rows.token_begin + static_cast<int32_t>(std::clamp<int64_t>(rows_max, 0, rows.rows()));
  const auto before = std::ssize(s.kv.blocks);
  ledger_->grow(&s.kv, ledger_->blocks_for(rows.token_end));
  if (!s.in_prompt()) counters_.blocks_grown += std::ssize(s.kv.blocks) - before;
  return rows;
}

void Scheduler::preempt_youngest() {
  Sequence& s = *running_.back();
  CHECK(s.planned.empty(), "sequence {} is planned already", core::number(s.id));
  s.computed_before = s.computed;
  leave_running(s, true);
  s.computed = 0;
  ++s.preemptions;
  ++counters_.preemptions;
  ++num_preempted_;
  waiting_.insert(std::ranges::upper_bound(waiting_, &s, is_older), &s);
}

void Scheduler::leave_running(Sequence& s, bool keep_rows) {
  const auto it = std::ranges::find(running_, &s);
  CHECK(it != running_.end(), "sequence {} is not running", core::number(s.id));
  running_.erase(it);
  ++departures_;
  if (tiered()) frames_.leave(s, keep_rows);
  slots_free_.push_back(s.slot.value());
  s.slot.reset();
  s.planned = {};
  s.layers.reset();
  ledger_->release(&s.kv);
}

void Scheduler::put_back(Sequence& s, Budget* budget) {
  put_back_.push_back(&s);
  ++num_put_back_;
  ++counters_.put_back;
  budget->blocked |= s.overtaken >= kOvertakenMax;
}

void Scheduler::count_overtaken() {
  for (Sequence* s : put_back_) {
    s->overtaken += s->id < (s->slot ? youngest_started_ : youngest_admitted_);
  }
  for (Sequence* s : running_) {
    if (!s->planned.empty()) s->overtaken = 0;
  }
}

void Scheduler::admit_waiting(Budget* budget, core::TransferPlan* transfers) {
  const int64_t work_min = std::max(options_.num_layers, ledger_->page_tokens());
  for (size_t i = 0; i < waiting_.size() && i < kLookAheadMax && !budget->blocked;) {
    if (budget->rows == 0 || budget->prompt_rows == 0 || slots_free_.empty()) return;
    const int64_t work = std::min(budget->inject, int64_t{budget->rows} * options_.num_layers);
    if (tiered() && work < work_min && !running_.empty()) return;
    Sequence& s = *waiting_[i];
    const Refused refused = try_admit(s, *budget, transfers);
    if (refused == Refused::kNo) {
      waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
      running_.insert(std::ranges::upper_bound(running_, &s, is_older), &s);
      youngest_admitted_ = std::max(youngest_admitted_, s.id);
      spend(s, budget, 0);
      continue;
    }
    if (!tiered()) return;
    put_back_.push_back(&s);
    counters_.put_back += refused == Refused::kFrames;
    budget->blocked |= s.overtaken >= kOvertakenMax;
    ++i;
  }
}

// Blocks that the sequence lacks for the tokens it has and an extent more.
int32_t Scheduler::blocks_wanted(const Sequence& s) const {
  const int64_t tokens_max = int64_t{s.prompt_len} + s.request.sampling.max_tokens;
  const int64_t tokens = std::min(tokens_max, int64_t{s.num_tokens()} + extent_tokens_);
  return std::max<int32_t>(0,
                           ledger_->blocks_for(tokens) - static_cast<int32_t>(s.kv.blocks.size()));
}

int64_t Scheduler::cached_tokens_max(const Sequence& s) const {
  // The last token's row is always computed, for its logits; so is every row whose logits are
  // wanted.
  int64_t tokens_max = s.num_tokens() - 1;
  if (s.wants_prompt_logprobs()) tokens_max = std::min<int64_t>(tokens_max, s.logits_from);
  // A generated row replays as kDecode; a prompt-made copy of it would have other bits.
  if (options_.deterministic) tokens_max = std::min<int64_t>(tokens_max, s.prompt_len);
  return tokens_max;
}

kv::PrefixMatch Scheduler::find_prefix(const Sequence& s) {
  const kv::PrefixMatch match =
      ledger_->find_prefix(s.request.cache_salt, s.tokens, cached_tokens_max(s));
  return options_.copies_heads ? match : match.whole_blocks(ledger_->page_tokens());
}

// How many blocks too few there are to admit the sequence beside the running ones.
int64_t Scheduler::blocks_missing(const Sequence& s, const kv::PrefixMatch& match) const {
  int64_t needed = blocks_wanted(s) - std::ssize(match.blocks);
  for (const Sequence* other : running_) needed += blocks_wanted(*other);
  return needed - (ledger_->num_available() - match.num_idle);
}

// True: the sequence waits for blocks of its prefix that are on disk. Only once all the blocks that
// it needs are there, or what comes would have to go again before it is admitted.
bool Scheduler::comes_from_disk(Sequence& s, const kv::PrefixMatch& match, int64_t missing,
                                core::TransferPlan* transfers) {
  if (missing > 0 && !running_.empty()) return false;
  const int64_t to_spare = ledger_->num_available() - match.num_idle;
  return fetches_.begin(s, cached_tokens_max(s), match, to_spare, transfers);
}

Scheduler::Refused Scheduler::try_admit(Sequence& s, const Budget& budget,
                                        core::TransferPlan* transfers) {
  CHECK(s.kv.blocks.empty() && s.computed == 0);
  constexpr auto kNever = std::numeric_limits<int32_t>::max();
  if (s.waits_for_disk) return Refused::kDisk;
  if (s.refusal && departures_ == s.refusal->departures &&
      ledger_->num_sealed() < s.refusal->sealed && frames_.rows_left() <= s.refusal->rows_left &&
      frames_.activations_free() <= s.refusal->activations) {
    return s.refusal->rows_left == kNever ? Refused::kBlocks : Refused::kFrames;
  }
  const bool cache = s.request.use_prefix_cache, alone = running_.empty();
  kv::PrefixMatch match = cache ? find_prefix(s) : kv::PrefixMatch{};
  const int64_t missing = blocks_missing(s, match);
  if (cache && comes_from_disk(s, match, missing, transfers)) return Refused::kDisk;
  if (missing > 0 && (!alone || !fetches_.empty() || ledger_->is_growing())) {
    // Sources of this step's copies will be available after it.
    const int64_t sealed = ledger_->num_sealed() + missing - std::ssize(transfers->copies);
    s.refusal = Refusal{departures_, sealed, kNever, kNever};
    return Refused::kBlocks;
  }
  // Alone it may own the whole pool, and then has no block to spare for a copy.
  if (missing > 0) match = match.whole_blocks(ledger_->page_tokens());
  std::optional<PrefillRows> rows;
  if (tiered()) {
    rows = frames_.plan_admission(s, match.blocks, alone);
    CHECK(rows || !alone, "sequence {} alone does not fit the device tier", core::number(s.id));
    if (!rows) {
      s.refusal = Refusal{departures_, std::numeric_limits<int64_t>::max(), frames_.rows_left(),
                          frames_.activations_free()};
      return Refused::kFrames;
    }
  }
  start(s, match, transfers);
  if (rows) start_on_device(s, *rows);
  s.planned = grow_for_rows(s, rows_of(s, budget, 0));
  CHECK(!s.planned.empty(), "sequence {} was admitted without a row", core::number(s.id));
  return Refused::kNo;
}

void Scheduler::start(Sequence& s, const kv::PrefixMatch& match, core::TransferPlan* transfers) {
  if (!s.started)
    s.tokens.reserve(static_cast<size_t>(s.prompt_len) + s.request.sampling.max_tokens);
  s.kv.blocks.reserve(static_cast<size_t>(ledger_->blocks_for(s.tokens.capacity())));
  if (s.request.use_prefix_cache) {
    counters_.prefix_tokens_queried += s.num_tokens();
    counters_.prefix_tokens_found += match.num_tokens;
    const int32_t in_memory = std::min(match.num_tokens, s.disk_from.value_or(match.num_tokens));
    if (ledger_->has_disk()) {
      counters_.disk_tokens_queried += s.num_tokens() - in_memory;
      counters_.disk_tokens_found += match.num_tokens - in_memory;
    }
    if (!s.started) {
      s.cached_tokens = match.num_tokens;
      s.disk_tokens = match.num_tokens - in_memory;
    }
    s.computed = match.num_tokens;
    if (const auto copy = ledger_->admit(&s.kv, s.request.cache_salt, match)) {
      transfers->copies.push_back(*copy);
    }
  } else {
    ledger_->admit_private(&s.kv);
  }
  counters_.tokens_recomputed += std::max(0, s.computed_before - s.computed);
  num_preempted_ -= s.started;
  s.started = true;
  s.disk_asks = 0;
  s.disk_from.reset();
  s.refusal.reset();
  s.slot = slots_free_.back();
  slots_free_.pop_back();
}

void Scheduler::start_on_device(Sequence& s, const PrefillRows& rows) {
  frames_.promise(s, rows);
  if (rows.resident || !s.in_prompt()) return;
  s.layers = PrefillProgress{.num_layers = options_.num_layers,
                             .token_begin = s.computed,
                             .token_end = s.prompt_len,
                             .token = s.computed};
  ledger_->grow(&s.kv, ledger_->blocks_for(s.prompt_len));
}

core::Segment Scheduler::segment_of(const Sequence& s) const {
  const core::SamplingParams& sampling = s.request.sampling;
  const bool has_hidden = s.planned.layer_end == options_.num_layers;
  const int32_t end = s.planned.token_end;
  core::Segment segment;
  segment.seq = s.id;
  segment.slot = s.slot.value();
  segment.kind = s.in_prompt() ? core::RowKind::kPrompt : core::RowKind::kDecode;
  segment.policy = s.request.policy;
  segment.layer_begin = s.planned.layer_begin;
  segment.layer_end = s.planned.layer_end;
  segment.token_begin = s.planned.token_begin;
  segment.token_end = end;
  segment.sample = has_hidden && end == s.num_tokens() && sampling.max_tokens > 0;
  segment.logits_begin = segment.sample ? end - 1 : end;
  if (has_hidden && s.in_prompt() && s.wants_prompt_logprobs()) {
    const int32_t wanted = std::max(segment.token_begin, s.logits_from);
    segment.logits_begin = std::min(segment.logits_begin, wanted);
  }
  segment.prompt_len = s.prompt_len;
  segment.tokens = s.tokens;
  segment.blocks = s.kv.blocks;
  segment.sampling = &sampling;
  if (segment.sample && s.request.constraint != nullptr)
    segment.allowed = s.request.constraint->mask();
  segment.frames = s.device.own;
  segment.resident = s.device.resident;
  segment.shared = s.device.shared;
  segment.layer_buffers = s.device.layer_buffers;
  segment.activations = s.device.activations;
  if (s.layers) segment.activation_begin = s.layers->token_begin;
  return segment;
}

void Scheduler::emit(core::StepPlan* plan) {
  int32_t rows_together = 0;  // those that pass through the workspace at once
  // Decodes, then chunks of prompts, then prompts that run layer by layer.
  const auto pass_of = [](const Sequence& s) { return s.layers ? 2 : s.in_prompt() ? 1 : 0; };
  for (const int pass : {0, 1, 2}) {
    for (Sequence* s : running_) {
      if (s->planned.empty() || pass_of(*s) != pass) continue;
      plan->segments.push_back(segment_of(*s));
      plan->num_rows += s->planned.rows();
      if (!s->layers) rows_together += s->planned.rows();
      planned_.push_back(s);
    }
  }
  CHECK(rows_together <= options_.max_num_batched_tokens, "{} rows", rows_together);
}

bool Scheduler::can_run_ahead(const core::TransferPlan& transfers) const {
  if (planned_.empty() || !transfers.loads.empty() || ledger_->has_disk()) return false;
  return std::ranges::all_of(planned_, [](const Sequence* s) {
    const bool draws = s->planned.token_end == s->num_tokens();
    return is_decoding(s) && s->num_generated() + draws < s->request.sampling.max_tokens;
  });
}

void Scheduler::run_ahead() {
  for (Sequence* s : planned_) {
    CHECK(is_decoding(s) && !s->ahead);
    const bool draws = s->planned.token_end == s->num_tokens();
    advance(*s);
    s->ahead = true;
    if (!draws) continue;
    CHECK(s->tokens.size() < s->tokens.capacity(), "the tokens would move");
    s->tokens.push_back(kUnknownToken);
  }
}

bool Scheduler::amend(core::StepPlan* plan, core::TransferPlan* transfers) {
  CHECK(planned_.size() == plan->segments.size());
  size_t kept = 0;
  plan->num_rows = 0;
  for (size_t i = 0; i < planned_.size(); ++i) {
    if (planned_[i]->planned.empty()) continue;  // it has left
    plan->num_rows += planned_[i]->planned.rows();
    if (kept < i) {
      planned_[kept] = planned_[i];
      plan->segments[kept] = plan->segments[i];
    }
    ++kept;
  }
  planned_.resize(kept);
  plan->segments.resize(kept);
  for (core::FrameCut& cut : transfers->cuts) {
    if (std::ranges::find(running_, cut.seq, &Sequence::id) == running_.end()) cut.keep = 0;
  }
  return kept > 0 || !transfers->empty();
}

// The planned rows are computed.
void Scheduler::advance(Sequence& s) {
  CHECK(!s.planned.empty(), "sequence {} is not planned", core::number(s.id));
  const RowRange ran = s.planned;
  s.planned = {};
  if (s.layers) {
    s.layers->advance(ran);
    if (s.layers->done()) {
      s.computed = s.prompt_len;
      s.layers.reset();
    }
  } else {
    s.computed = ran.token_end;
  }
  if (s.wants_prompt_logprobs() && ran.layer_end == options_.num_layers) {
    s.logits_from = std::max(s.logits_from, std::min(ran.token_end, s.prompt_len - 1));
  }
}

void Scheduler::commit(Sequence* s, int32_t working_set_frames) {
  if (!std::exchange(s->ahead, false)) advance(*s);
  if (s->layers || !s->slot) return;  // preempted by the plan behind
  ledger_->end_step(&s->kv, s->tokens, s->prompt_len, s->computed);
  if (!tiered()) return;
  frames_.announce(*s);
  s->device.working_set = working_set_frames;
  if (!s->in_prompt()) frames_.end_prompt(*s);
}

void Scheduler::open_blocks(int32_t num_blocks, bool is_last) {
  ledger_->open(num_blocks, is_last);
  ++departures_;  // there are blocks to be had
}

void Scheduler::commit_disk(const core::StepResult& result) {
  ledger_->end_spills(result.unwritten);
  if (result.fetched.empty()) return;
  fetches_.end(result.fetched);
  ++departures_;  // the blocks that reads held can be had
}

void Scheduler::remove(Sequence* s) {
  take_out(s, true);
}

void Scheduler::remove_failed(Sequence* s, const core::TransferPlan& transfers) {
  if (tiered()) frames_.spoil_loads(transfers, *s);
  take_out(s, false);
}

void Scheduler::take_out(Sequence* s, bool keep_rows) {
  if (s->slot) {
    leave_running(*s, keep_rows);
    return;
  }
  const auto it = std::ranges::find(waiting_, s);
  CHECK(it != waiting_.end(), "sequence {} is not here", core::number(s->id));
  waiting_.erase(it);
  num_preempted_ -= s->started;
  fetches_.forget(*s);
}

void Scheduler::step_failed(const core::TransferPlan& transfers, core::TransferPlan* next) {
  frames_.spoil_loads(transfers);
  if (next == nullptr) return frames_.repeat_cuts(transfers);
  // Its rows may stand in the next plan for others already; whoever was to keep some is ended.
  for (core::FrameCut cut : transfers.cuts) {
    cut.keep = 0;
    cut.drop_shared = true;
    next->cuts.insert(next->cuts.begin(), cut);
  }
}

bool Scheduler::is_cut(const Sequence& s, const core::TransferPlan& transfers) {
  return std::ranges::any_of(
      transfers.cuts, [&](const core::FrameCut& cut) { return cut.seq == s.id && cut.keep > 0; });
}

void Scheduler::drop_cached() {
  ledger_->drop_cached();
  frames_.drop_idle();
}

void Scheduler::check_integrity() const {
  std::vector<const kv::SequenceBlocks*> held;
  std::vector<bool> slots(static_cast<size_t>(options_.max_num_seqs), false);
  for (const Sequence* s : running_) {
    held.push_back(&s->kv);
    CHECK(!slots.at(static_cast<size_t>(s->slot.value())), "slot {} is taken twice", *s->slot);
    slots[static_cast<size_t>(*s->slot)] = true;
    CHECK(s->overtaken <= kOvertakenMax, "sequence {} was overtaken {} times", core::number(s->id),
          s->overtaken);
  }
  for (const Sequence* s : waiting_) {
    CHECK(s->kv.blocks.empty() && !s->slot && s->computed == 0 && s->overtaken <= kOvertakenMax);
  }
  CHECK(std::ranges::count_if(waiting_, &Sequence::started) == num_preempted_);
  CHECK(running_.size() + slots_free_.size() == slots.size());
  CHECK(std::ranges::is_sorted(running_, is_older) && std::ranges::is_sorted(waiting_, is_older));
  CHECK(tiered() || running_.empty() || waiting_.empty() ||
        is_older(running_.back(), waiting_.front()));
  fetches_.list_held(&held);
  ledger_->check_integrity(held);
  if (tiered()) frames_.check_integrity(running_);
}

}  // namespace sched
