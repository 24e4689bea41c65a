#include "sched/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace sched {
namespace {

// Rows of the sequence's present kind that it could run now: the rest of its prompt, or its
// generated tokens without a row.
int32_t rows_pending(const Sequence& s) {
  return (s.in_prompt() ? s.prompt_len : s.num_tokens()) - s.computed;
}

bool is_older(const Sequence* a, const Sequence* b) {
  return a->id < b->id;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, kv::BlockLedger* ledger)
    : options_(options), ledger_(ledger) {
  CHECK(options.max_num_seqs > 0 && options.max_num_batched_tokens >= options.max_num_seqs,
        "{} sequences, {} rows a step", options.max_num_seqs, options.max_num_batched_tokens);
  const auto seqs = static_cast<size_t>(options.max_num_seqs);
  running_.reserve(seqs);
  planned_.reserve(seqs);
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
  const int64_t preemptions_before = counters_.preemptions;
  const int32_t rows_left = continue_running();
  if (counters_.preemptions == preemptions_before) admit_waiting(rows_left, transfers);
  plan->step = ++step_;
  emit(plan);
}

// Gives every running sequence its rows, oldest first; returns the rows left over.
int32_t Scheduler::continue_running() {
  const auto is_decoding = [](const Sequence* s) { return !s->in_prompt(); };
  int32_t rows_left = options_.max_num_batched_tokens -
                      static_cast<int32_t>(std::ranges::count_if(running_, is_decoding));
  CHECK(rows_left >= 0);
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    CHECK(s.rows_planned == 0, "sequence {} was not committed", core::number(s.id));
    const int32_t set_aside = s.in_prompt() ? 0 : 1;
    const int32_t wanted = std::min(rows_pending(s), rows_left + set_aside);
    CHECK(rows_pending(s) > 0, "sequence {} has nothing to run", core::number(s.id));
    if (wanted == 0) continue;
    int32_t rows = grow_for_rows(s, wanted);
    while (rows == 0) {
      // Victims have no rows yet: they come later in this loop.
      const bool itself = running_.back() == &s;
      CHECK(!itself || i > 0, "sequence {} alone does not fit the pool", core::number(s.id));
      if (is_decoding(running_.back())) ++rows_left;
      preempt_youngest();
      if (itself) return rows_left;
      rows = grow_for_rows(s, wanted);
    }
    s.rows_planned = rows;
    rows_left -= rows - set_aside;
  }
  return rows_left;
}

// Reserves blocks for as many of `rows_wanted` more rows as can be had; returns how many rows that
// is.
int32_t Scheduler::grow_for_rows(Sequence& s, int32_t rows_wanted) {
  const int64_t blocks_max = std::ssize(s.kv.blocks) + ledger_->num_available();
  const int64_t rows_max = blocks_max * ledger_->page_tokens() - s.computed;
  const auto rows = static_cast<int32_t>(std::min<int64_t>(rows_wanted, rows_max));
  ledger_->grow(&s.kv, ledger_->blocks_for(s.computed + rows));
  return rows;
}

void Scheduler::preempt_youngest() {
  Sequence& s = *running_.back();
  CHECK(s.rows_planned == 0, "sequence {} is planned already", core::number(s.id));
  leave_running(s);
  s.computed = 0;
  ++s.preemptions;
  ++counters_.preemptions;
  waiting_.push_front(&s);
}

void Scheduler::leave_running(Sequence& s) {
  const auto it = std::ranges::find(running_, &s);
  CHECK(it != running_.end(), "sequence {} is not running", core::number(s.id));
  running_.erase(it);
  refusal_.reset();
  slots_free_.push_back(s.slot.value());
  s.slot.reset();
  s.rows_planned = 0;
  ledger_->release(&s.kv);
}

void Scheduler::admit_waiting(int32_t rows_left, core::TransferPlan* transfers) {
  while (!waiting_.empty() && rows_left > 0 && !slots_free_.empty()) {
    Sequence& s = *waiting_.front();
    if (!try_admit(s, rows_left, transfers)) return;
    waiting_.pop_front();
    running_.push_back(&s);
    rows_left -= s.rows_planned;
  }
}

// Blocks that the sequence lacks for the tokens it has and one more block's worth.
int32_t Scheduler::blocks_wanted(const Sequence& s) const {
  const int64_t tokens_max = int64_t{s.prompt_len} + s.request.sampling.max_tokens;
  const int64_t tokens = std::min(tokens_max, int64_t{s.num_tokens()} + ledger_->page_tokens());
  return std::max<int32_t>(0,
                           ledger_->blocks_for(tokens) - static_cast<int32_t>(s.kv.blocks.size()));
}

kv::PrefixMatch Scheduler::find_prefix(const Sequence& s) {
  // The last token's row is always computed, for its logits; so is every row whose logits are
  // wanted.
  int64_t tokens_max = s.num_tokens() - 1;
  if (s.wants_prompt_logprobs()) tokens_max = std::min<int64_t>(tokens_max, s.logits_from);
  // A generated row replays as kDecode; a prompt-made copy of it would have other bits.
  if (options_.deterministic) tokens_max = std::min<int64_t>(tokens_max, s.prompt_len);
  return ledger_->find_prefix(s.request.cache_salt, s.tokens, tokens_max);
}

bool Scheduler::try_admit(Sequence& s, int32_t rows_left, core::TransferPlan* transfers) {
  CHECK(s.kv.blocks.empty() && s.computed == 0);
  if (refusal_ && refusal_->head == s.id && ledger_->num_sealed() < refusal_->retry_at_sealed) {
    return false;
  }
  const bool cache = s.request.use_prefix_cache;
  kv::PrefixMatch match = cache ? find_prefix(s) : kv::PrefixMatch{};
  int64_t needed = blocks_wanted(s) - std::ssize(match.blocks);
  for (const Sequence* other : running_) needed += blocks_wanted(*other);
  const int64_t available = ledger_->num_available() - match.num_idle;
  if (available < needed && !running_.empty()) {
    // Sources of this step's copies will be available after it.
    const int64_t missing = needed - available - std::ssize(transfers->copies);
    refusal_ = Refusal{s.id, ledger_->num_sealed() + missing};
    return false;
  }
  // Alone it may own the whole pool, and then has no block to spare for a copy.
  if (available < needed) match = match.whole_blocks(ledger_->page_tokens());

  if (!s.started)
    s.tokens.reserve(static_cast<size_t>(s.prompt_len) + s.request.sampling.max_tokens);
  s.kv.blocks.reserve(static_cast<size_t>(ledger_->blocks_for(s.tokens.capacity())));
  if (cache) {
    counters_.prefix_tokens_queried += s.num_tokens();
    counters_.prefix_tokens_found += match.num_tokens;
    if (!s.started) s.cached_tokens = match.num_tokens;
    s.computed = match.num_tokens;
    if (const auto copy = ledger_->admit(&s.kv, s.request.cache_salt, match)) {
      transfers->copies.push_back(*copy);
    }
  } else {
    ledger_->admit_private(&s.kv);
  }
  s.started = true;
  s.slot = slots_free_.back();
  slots_free_.pop_back();
  s.rows_planned = grow_for_rows(s, std::min(rows_pending(s), rows_left));
  CHECK(s.rows_planned > 0, "sequence {} was admitted without a row", core::number(s.id));
  return true;
}

core::Segment Scheduler::segment_of(const Sequence& s) const {
  const int32_t end = s.computed + s.rows_planned;
  const core::SamplingParams& sampling = s.request.sampling;
  core::Segment segment;
  segment.seq = s.id;
  segment.slot = s.slot.value();
  segment.kind = s.in_prompt() ? core::RowKind::kPrompt : core::RowKind::kDecode;
  segment.policy = s.request.policy;
  segment.layer_end = options_.num_layers;
  segment.token_begin = s.computed;
  segment.token_end = end;
  segment.sample = end == s.num_tokens() && sampling.max_tokens > 0;
  segment.logits_begin = segment.sample ? end - 1 : end;
  if (s.in_prompt() && s.wants_prompt_logprobs()) {
    const int32_t wanted = std::max(s.computed, s.logits_from);
    segment.logits_begin = std::min(segment.logits_begin, wanted);
  }
  segment.prompt_len = s.prompt_len;
  segment.tokens = s.tokens;
  segment.blocks = s.kv.blocks;
  segment.sampling = &sampling;
  return segment;
}

void Scheduler::emit(core::StepPlan* plan) {
  for (const bool prompt_pass : {false, true}) {
    for (Sequence* s : running_) {
      if (s->rows_planned == 0 || s->in_prompt() != prompt_pass) continue;
      plan->segments.push_back(segment_of(*s));
      plan->num_rows += s->rows_planned;
      planned_.push_back(s);
    }
  }
  CHECK(plan->num_rows <= options_.max_num_batched_tokens, "{} rows", plan->num_rows);
}

void Scheduler::commit(Sequence* s) {
  CHECK(s->rows_planned > 0, "sequence {} is not planned", core::number(s->id));
  s->computed += s->rows_planned;
  s->rows_planned = 0;
  if (s->wants_prompt_logprobs()) {
    s->logits_from = std::max(s->logits_from, std::min(s->computed, s->prompt_len - 1));
  }
  ledger_->end_step(&s->kv, s->tokens, s->prompt_len, s->computed);
}

void Scheduler::remove(Sequence* s) {
  if (s->slot) {
    leave_running(*s);
    return;
  }
  const auto it = std::ranges::find(waiting_, s);
  CHECK(it != waiting_.end(), "sequence {} is not here", core::number(s->id));
  waiting_.erase(it);
}

void Scheduler::check_integrity() const {
  std::vector<const kv::SequenceBlocks*> held;
  std::vector<bool> slots(static_cast<size_t>(options_.max_num_seqs), false);
  for (const Sequence* s : running_) {
    held.push_back(&s->kv);
    CHECK(!slots.at(static_cast<size_t>(s->slot.value())), "slot {} is taken twice", *s->slot);
    slots[static_cast<size_t>(*s->slot)] = true;
  }
  for (const Sequence* s : waiting_) CHECK(s->kv.blocks.empty() && !s->slot && s->computed == 0);
  CHECK(running_.size() + slots_free_.size() == slots.size());
  CHECK(std::ranges::is_sorted(running_, is_older) && std::ranges::is_sorted(waiting_, is_older));
  CHECK(running_.empty() || waiting_.empty() || is_older(running_.back(), waiting_.front()));
  ledger_->check_integrity(held);
}

}  // namespace sched
