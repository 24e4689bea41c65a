#include "sim/cost_executor.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sim/sim_executor.h"

namespace sim {

using core::RowKind;
using core::Segment;

CostExecutor::CostExecutor(const CostOptions& options)
    : options_(options),
      cost_(options.machine, options.model, options.page_tokens),
      columns_(int64_t{options.model.num_layers} * options.model.num_kv_heads),
      slots_(static_cast<size_t>(options.max_num_seqs)) {}

base::Result<void> CostExecutor::run(const core::StepPlan& plan,
                                     const core::TransferPlan& transfers,
                                     core::StepResult* result) {
  CHECK(transfers.loads.empty() && transfers.copies.empty(), "the prefix cache is on");
  last_ = {.save_us = saves_us_};
  token_layers_ = saved_pages_ = 0;
  for (const core::FrameCut& entry : transfers.cuts) cut(entry);
  result->segments.resize(plan.segments.size());
  int32_t layers = 0, logits = 0;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& s = plan.segments[i];
    core::SegmentResult& r = result->segments[i];
    r.seq = s.seq;
    r.sampled = s.sample;
    r.token = 1;
    r.working_set_frames = 0;
    Slot& slot = enter(s);
    s.kind == RowKind::kPrompt ? run_prompt(s, slot) : run_decode(s, slot, &r);
    token_layers_ += int64_t{s.token_end - s.token_begin} * (s.layer_end - s.layer_begin);
    layers += s.layer_end - s.layer_begin;
    logits += s.token_end - s.logits_begin;
  }
  last_.linear_us =
      cost_.linear_us(token_layers_, std::min(layers, options_.model.num_layers), logits);
  last_.load_us = cost_.load_us(last_.pages_loaded * columns_, options_.load);
  saves_us_ = cost_.save_us(saved_pages_, options_.save);
  const double busy_us =
      options_.machine.step_us + last_.linear_us + last_.attention_us + last_.load_us;
  last_.total_us = std::llround(std::max(busy_us, last_.save_us));
  now_us_ += last_.total_us;
  result->kv = {.pages_loaded = last_.pages_loaded * columns_,
                .pages_saved = saved_pages_,
                .layers_segmented = last_.layers_segmented};
  return {};
}

void CostExecutor::cut(const core::FrameCut& entry) {
  Slot& slot = slots_[static_cast<size_t>(entry.slot)];
  if (slot.seq != entry.seq) return;
  if (entry.keep == 0) {
    slot = {};
    return;
  }
  slot.rows = entry.keep;
  evict(slot);
}

CostExecutor::Slot& CostExecutor::enter(const Segment& s) {
  Slot& slot = slots_[static_cast<size_t>(s.slot)];
  if (slot.seq != s.seq) {
    const bool sparse = s.policy.kind == core::AttentionPolicy::Kind::kSparse;
    slot = {.seq = s.seq};
    if (sparse) {
      slot.selections =
          SelectionProcess(options_.locality, s.policy.budget_tokens / options_.page_tokens,
                           mix(options_.seed, core::number(s.seq)));
    }
  }
  slot.rows = static_cast<int32_t>(s.frames.size() + s.shared.size());
  if (!options_.tiered) slot.rows = static_cast<int32_t>(s.blocks.size());
  return slot;
}

void CostExecutor::add_pages(Slot& slot, int32_t num_pages, bool resident) {
  if (num_pages <= slot.num_pages) return;
  if (resident) slot.num_resident += num_pages - slot.num_pages;
  slot.is_resident.resize(static_cast<size_t>(num_pages), resident);
  slot.selected_at.resize(static_cast<size_t>(num_pages), 0);
  slot.num_pages = num_pages;
}

void CostExecutor::run_prompt(const Segment& s, Slot& slot) {
  ++last_.prompts;
  const int32_t layers = s.layer_end - s.layer_begin;
  const double attention_us = layers * cost_.prompt_attention_us(s.token_begin, s.token_end);
  last_.attention_us += attention_us;
  last_.prompt_attention_us += attention_us;
  const int64_t sealed = s.token_end / options_.page_tokens - s.token_begin / options_.page_tokens;
  if (options_.tiered) saved_pages_ += sealed * layers * options_.model.num_kv_heads;
  if (!s.layer_buffers.empty()) last_.layers_segmented += layers;
  if (s.layer_buffers.empty()) {
    add_pages(slot, pages(s.token_end), true);
  } else if (s.layer_end == options_.model.num_layers && s.token_end == s.prompt_len) {
    add_pages(slot, s.prompt_len / options_.page_tokens, false);
    add_pages(slot, pages(s.prompt_len), true);  // the tail
  }
}

void CostExecutor::run_decode(const Segment& s, Slot& slot, core::SegmentResult* result) {
  ++last_.decodes;
  const bool sparse = s.policy.kind == core::AttentionPolicy::Kind::kSparse;
  for (int32_t p = s.token_begin; p < s.token_end; ++p) {
    const int32_t num_pages = p / options_.page_tokens + 1;
    slot.position = p + 1;
    add_pages(slot, num_pages, true);
    if (options_.tiered && (p + 1) % options_.page_tokens == 0) saved_pages_ += columns_;
    if (!sparse) {
      last_.attention_us += cost_.decode_attention_us(num_pages, 0);
      continue;
    }
    const auto selected = slot.selections.select(num_pages);
    const bool selects = std::ssize(selected) < num_pages;
    last_.attention_us += cost_.decode_attention_us(std::ssize(selected), selects ? num_pages : 0);
    last_.pages_selected += std::ssize(selected);
    for (const int32_t page : selected) {
      const auto at = static_cast<size_t>(page);
      slot.selected_at[at] = slot.position;
      if (slot.is_resident[at]) continue;
      slot.is_resident[at] = true;
      ++slot.num_resident;
      ++last_.pages_loaded;
    }
    evict(slot);
  }
  result->working_set_frames = sparse ? working_set(slot) : 0;
}

void CostExecutor::evict(Slot& slot) {
  const auto stack = slot.selections.stack();
  for (size_t i = stack.size(); i-- > 0 && slot.num_resident > slot.rows;) {
    const auto page = static_cast<size_t>(stack[i]);
    if (!slot.is_resident[page]) continue;
    slot.is_resident[page] = false;
    --slot.num_resident;
  }
  // No decode yet, so nothing is selected: the first pages go first.
  for (size_t page = 0; slot.num_resident > slot.rows && stack.empty(); ++page) {
    slot.num_resident -= slot.is_resident[page];
    slot.is_resident[page] = false;
  }
}

int32_t CostExecutor::working_set(const Slot& slot) const {
  return static_cast<int32_t>(std::ranges::count_if(slot.selected_at, [&](int32_t stamp) {
    return stamp > 0 && stamp + options_.working_set_window > slot.position;
  }));
}

}  // namespace sim
