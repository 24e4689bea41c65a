#include "engine/live_view.h"

#include <algorithm>
#include <utility>

namespace engine {
namespace {

using State = core::LiveSequenceState::State;

// Everything about one sequence but its strip.
void describe(const LiveSequence& s, const LiveView::Sources& from, int64_t now_us,
              core::LiveSequenceState* out) {
  out->seq = s.id;
  out->request = s.request.id;
  out->prompt_tokens = s.prompt_len;
  out->cached_tokens = s.cached_tokens;
  out->generated_tokens = s.num_generated();
  out->max_tokens = s.request.sampling.max_tokens;
  out->computed_tokens = s.computed;
  out->rows = s.device.rows();
  out->working_set_rows = s.device.working_set;
  out->resident = s.slot.has_value() && s.device.resident;
  const EventStream::Pages pages = s.events->pages();
  out->pages_selected = pages.selected;
  out->pages_missed = pages.missed;
  out->preemptions = s.preemptions;
  out->age_us = now_us - s.request.arrival_us;
  if (s.layers) {
    out->layers_done = s.layers->layer;
    out->num_layers = s.layers->num_layers;
  }
  const bool tiered = from.scheduler->frames().num_total() > 0;
  if (!s.slot) {
    out->state = s.waits_for_disk ? State::kReading : State::kWaiting;
  } else if (tiered && s.planned.empty() && s.device.need == 0) {
    out->state = State::kPutBack;
  } else {
    out->state = s.in_prompt() ? State::kPrefill : State::kDecode;
  }
}

// A waiting sequence has no pages of its own; one whose prefix is read from disk will have these.
void draw_waiting(const LiveSequence& s, const LiveView::Sources& from, core::PageStrip* strip) {
  const kv::DiskFetch* const fetch = from.scheduler->disk_fetch(s);
  strip->reset(from.ledger->blocks_for(s.num_tokens()));
  strip->device_known = strip->selected_known = core::Known::kAll;  // none is
  if (fetch == nullptr) return;
  const size_t prefix = fetch->held.blocks.size() - fetch->records.size();
  for (int32_t cell = 0; cell < strip->num_cells(); ++cell) {
    int64_t here = 0, on_disk = 0;
    for (auto page = static_cast<size_t>(strip->cell_begin(cell));
         page < static_cast<size_t>(strip->cell_end(cell)) && page < fetch->held.blocks.size();
         ++page) {
      ++(page < prefix || fetch->arrived[page - prefix] ? here : on_disk);
    }
    const int64_t pages = strip->cell_end(cell) - strip->cell_begin(cell);
    strip->host[static_cast<size_t>(cell)] = core::cell_share(here, pages);
    strip->disk[static_cast<size_t>(cell)] = core::cell_share(on_disk, pages);
  }
}

// What a prompt that runs layer by layer has so far: whole pages of the layers that are done. On
// the device are buffers of the layers in work, which are nobody's pages yet.
void draw_layers(const LiveSequence& s, const LiveView::Sources& from, core::PageStrip* strip) {
  const int32_t cached = s.layers->token_begin / from.ledger->page_tokens();
  strip->reset(from.ledger->blocks_for(s.prompt_len));
  strip->add(&strip->host, 0, cached);
  if (s.layers->layer > 0) {
    strip->add(&strip->host, cached, strip->num_pages,
               core::cell_share(s.layers->layer, s.layers->num_layers));
  }
  strip->add(&strip->device, 0, static_cast<int32_t>(s.device.shared.size()));
}

// The bookkeeping's part: homes, and of the device what the host decides. What a sequence that is
// not resident has in its own rows only the device knows.
void draw_running(const LiveSequence& s, const LiveView::Sources& from, core::PageStrip* strip) {
  const int32_t pages = from.ledger->blocks_for(s.computed);
  strip->reset(from.ledger->blocks_for(std::max(s.computed, s.prompt_len)));  // some are to come
  const bool tiered = from.scheduler->frames().num_total() > 0;
  if (!tiered || s.device.resident) {
    strip->add(&strip->device, 0, pages);
    strip->device_known = core::Known::kAll;
  } else {
    strip->add(&strip->device, 0, static_cast<int32_t>(s.device.shared.size()));
    strip->device_known = core::Known::kCounts;
  }
  if (tiered) strip->add(&strip->host, 0, s.computed / from.ledger->page_tokens());
  const bool attends_to_all = s.request.policy.kind == core::AttentionPolicy::Kind::kDense ||
                              s.computed <= s.request.policy.budget_tokens;
  if (attends_to_all && !s.in_prompt()) {
    strip->selected_known = core::Known::kAll;
    strip->add(&strip->selected, 0, pages);
  }
  from.executor->draw_pages(*s.slot, s.id, strip);
}

void draw(const LiveSequence& s, const LiveView::Sources& from, core::PageStrip* strip) {
  if (!s.slot) return draw_waiting(s, from, strip);
  if (s.layers && !s.layers->done()) return draw_layers(s, from, strip);
  draw_running(s, from, strip);
}

void copy_sequences(const LiveView::Sources& from, int64_t now_us, core::LiveState* to) {
  to->sequences.clear();
  const auto add = [&](const sched::Sequence* sequence) {
    if (to->sequences.size() == core::kLiveSequencesMax) return;
    const auto& s = *static_cast<const LiveSequence*>(sequence);
    core::LiveSequenceState& out = to->sequences.emplace_back();
    describe(s, from, now_us, &out);
    draw(s, from, &out.strip);
  };
  const auto running = from.scheduler->running();
  const auto& waiting = from.scheduler->waiting();
  std::ranges::for_each(running, add);
  std::ranges::for_each(waiting, add);
  to->sequences_left_out =
      static_cast<int32_t>(running.size() + waiting.size() - to->sequences.size());
}

}  // namespace

LiveView::LiveView() {
  next_.sequences.reserve(core::kLiveSequencesMax);
  last_.sequences.reserve(core::kLiveSequencesMax);
}

core::LiveState LiveView::read(int64_t now_us) {
  watched_until_us_.store(now_us + kWatchedForUs, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  return last_;
}

void LiveView::refresh_watched(const Sources& from, int64_t now_us) {
  const bool runs = !from.plan->segments.empty();
  const bool may_come_early = runs && !was_running_;
  if (now_us < next_copy_us_ - (may_come_early ? kIntervalUs : 0)) return;
  next_copy_us_ = std::max(now_us, next_copy_us_) + kIntervalUs;
  was_running_ = runs;
  next_.made_us = now_us;
  next_.in_step = runs;
  next_.step_prompts = next_.step_decodes = 0;
  for (const core::Segment& segment : from.plan->segments) {
    ++(segment.kind == core::RowKind::kPrompt ? next_.step_prompts : next_.step_decodes);
  }
  if (const kv::DiskCatalog* const disk = from.ledger->disk()) {
    next_.disk_records = disk->num_total();
    next_.disk_records_used = disk->num_total() - disk->num_free();
  }
  copy_sequences(from, now_us, &next_);
  num_made_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  std::swap(last_, next_);
}

}  // namespace engine
