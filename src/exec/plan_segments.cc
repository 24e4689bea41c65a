#include "exec/plan_segments.h"

#include <algorithm>

#include "base/check.h"

namespace exec {

std::span<const core::Segment> whole_passes(const core::StepPlan& plan) {
  const auto end = std::ranges::find_if(
      plan.segments, [](const core::Segment& s) { return !s.activations.empty(); });
  return {plan.segments.begin(), end};
}

base::Result<void> check_plan(const core::StepPlan& plan, const KvOptions& kv, bool segmented) {
  const std::span<const core::Segment> whole = whole_passes(plan);
  int32_t num_rows = 0;
  for (const core::Segment& s : whole) num_rows += s.token_end - s.token_begin;
  CHECK(num_rows <= kv.rows_max, "{} rows in a step of {} at most", num_rows, kv.rows_max);
  CHECK(plan.segments.size() <= static_cast<size_t>(kv.max_num_seqs), "{} segments",
        plan.segments.size());
  for (const core::Segment& s : plan.segments) {
    CHECK(s.token_begin < s.token_end && s.token_end <= static_cast<int32_t>(s.tokens.size()));
    CHECK(int64_t{s.token_end} <= static_cast<int64_t>(s.blocks.size()) * kv.page.page_tokens);
    CHECK(s.slot >= 0 && s.slot < kv.max_num_seqs && s.token_end <= kv.context_max,
          "slot {} at {} tokens", s.slot, s.token_end);
    CHECK(s.layer_begin >= 0 && s.layer_begin < s.layer_end && s.layer_end <= kv.num_layers);
    const bool has_activations = !s.activations.empty();
    CHECK(has_activations ? segmented : s.layer_end - s.layer_begin == kv.num_layers,
          "layers [{}, {}) of a prompt that has no activations", s.layer_begin, s.layer_end);
    CHECK(has_activations || &s < whole.data() + whole.size(),
          "segments with activations are the last");
    if (s.policy.kind == core::AttentionPolicy::Kind::kSparse &&
        (s.policy.budget_tokens < 2 * kv.page.page_tokens ||
         s.policy.budget_tokens > kv.sparse.budget_tokens)) {
      return base::error(base::Code::kInternal, "a budget of {} tokens where {} are the most",
                         s.policy.budget_tokens, kv.sparse.budget_tokens);
    }
  }
  return {};
}

void begin_results(const core::StepPlan& plan, int32_t num_layers, core::StepResult* result) {
  result->step = plan.step;
  result->segments.resize(plan.segments.size());
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const core::Segment& s = plan.segments[i];
    core::SegmentResult& r = result->segments[i];
    r.seq = s.seq;
    r.error.clear();
    r.pages_selected = r.pages_missed = 0;
    r.working_set_frames = 0;
    r.working_set_pages = 0;
    const bool has_logits = s.layer_end == num_layers;
    r.sampled = s.sample && has_logits;
    r.has_logprobs = r.sampled && s.sampling->logprobs.has_value();
    // Scored positions: the token after each row with logits, as far as it is a prompt token.
    const int32_t scored_end = std::min(s.token_end, s.prompt_len - 1);
    const bool scored =
        has_logits && s.sampling->prompt_logprobs.has_value() && scored_end > s.logits_begin;
    r.prompt.resize(scored ? static_cast<size_t>(scored_end - s.logits_begin) : 0);
  }
}

int32_t prefill_end(const core::Segment& segment, int32_t page_tokens) {
  const auto activation_pages = static_cast<int32_t>(segment.activations.size());
  return std::min(segment.prompt_len, segment.activation_begin + activation_pages * page_tokens);
}

}  // namespace exec
