#include "sched/admission.h"

#include <algorithm>

#include "sched/highest.h"

namespace sched {
namespace {

int32_t ceil_div(int64_t a, int64_t b) {
  return static_cast<int32_t>((a + b - 1) / b);
}

}  // namespace

int32_t selection_pages(const core::AttentionPolicy& policy, int32_t page_tokens) {
  if (policy.kind == core::AttentionPolicy::Kind::kDense) return kAllPages;
  return policy.budget_tokens / page_tokens;
}

int32_t decode_rows(int32_t pages, int32_t selection, int32_t working_set) {
  const int64_t selected = std::max(selection, working_set);
  return static_cast<int32_t>(std::min<int64_t>(pages, selected + 1));
}

int32_t layer_buffer_rows(int32_t pages, const TierSizes& sizes) {
  if (sizes.num_columns == 0) return 0;
  return 2 * ceil_div(int64_t{pages} * sizes.layer_columns_max, sizes.num_columns);
}

PrefillRows resident_rows(const PrefillDemand& demand) {
  return {.resident = true,
          .own = demand.pages - demand.pages_cached,
          .shared = demand.pages_cached - demand.pages_in_rows};
}

PrefillRows prefill_rows(const PrefillDemand& demand, const TierSizes& sizes, int32_t rows_easy) {
  const PrefillRows resident = resident_rows(demand);
  if (sizes.prefill == core::Prefill::kChunked) return resident;
  const PrefillRows layered{.own = 1,
                            .buffers = layer_buffer_rows(demand.pages, sizes),
                            .activations = demand.pages - demand.pages_cached};
  // The buffers need as many rows wherever the cached pages are.
  const bool is_cheaper = demand.pages <= layered.rows();
  return is_cheaper || resident.rows() <= rows_easy ? resident : layered;
}

int32_t prompt_tokens_max(const TierSizes& sizes, int32_t page_tokens, int32_t tokens_max) {
  if (!sizes.tiered()) return tokens_max;
  return highest(tokens_max, [&](int32_t tokens) {
    const PrefillDemand demand{.pages = ceil_div(tokens, page_tokens)};
    const PrefillRows rows = prefill_rows(demand, sizes, sizes.num_frames);
    return rows.rows() <= sizes.num_frames && rows.activations <= sizes.activation_pages;
  });
}

}  // namespace sched
