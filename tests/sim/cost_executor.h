// An executor that only keeps time: its clock advances by what the cost model says of a plan.
//
// It follows residency as the device would, in one column that stands for all of a sequence's:
// selections come from a process of given locality, rows of frames from the plan, the page
// selected longest ago is evicted, what finds no row goes through scratch. Contents are not
// followed: tiered_executor.h checks those. Loads are waited for; the saves of a step run beside
// the next one, which waits for them. Needs the prefix cache off. Thread: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "exec/executor.h"
#include "sim/cost_model.h"
#include "sim/selection_process.h"

namespace sim {

struct CostOptions {
  Machine machine;
  core::ModelConfig model;
  Locality locality = kLongneedle;
  int32_t page_tokens = 0;
  int32_t max_num_seqs = 0;
  bool tiered = false;
  core::LoadMethod load = core::LoadMethod::kAuto;
  core::SaveMethod save = core::SaveMethod::kAuto;
  int32_t working_set_window = 12;
  uint64_t seed = 0;
};

// What the last step did.
struct StepCost {
  int32_t decodes = 0;       // sequences
  int32_t prompts = 0;       // segments of prompts
  int64_t pages_loaded = 0;  // of one column
  int64_t pages_selected = 0;
  int64_t layers_segmented = 0;
  double linear_us = 0, attention_us = 0, load_us = 0, save_us = 0;  // saves: of the step before
  double prompt_attention_us = 0;                                    // of attention_us
  int64_t total_us = 0;
};

class CostExecutor : public exec::Executor {
 public:
  explicit CostExecutor(const CostOptions& options);

  base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                         core::StepResult* result) override;

  int64_t now_us() const { return now_us_; }
  void wait_until(int64_t time_us) { now_us_ = std::max(now_us_, time_us); }
  const StepCost& last() const { return last_; }

 private:
  struct Slot {
    core::SeqId seq{};
    SelectionProcess selections;
    int32_t rows = 0;  // of frames, the sequence's own and shared ones
    int32_t num_pages = 0, num_resident = 0;
    std::vector<bool> is_resident;     // (pages)
    std::vector<int32_t> selected_at;  // (pages) position + 1; 0: never
    int32_t position = 0;              // of its last decode row, + 1
  };

  void cut(const core::FrameCut& cut);
  Slot& enter(const core::Segment& segment);
  void add_pages(Slot& slot, int32_t num_pages, bool resident);
  void run_prompt(const core::Segment& segment, Slot& slot);
  void run_decode(const core::Segment& segment, Slot& slot, core::SegmentResult* result);
  void evict(Slot& slot);
  int32_t working_set(const Slot& slot) const;
  int32_t pages(int32_t tokens) const {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }

  const CostOptions options_;
  const CostModel cost_;
  const int64_t columns_;
  std::vector<Slot> slots_;
  StepCost last_;
  int64_t token_layers_ = 0;  // of this step
  int64_t saved_pages_ = 0;   // of this step, over all columns
  double saves_us_ = 0;       // of the step before
  int64_t now_us_ = 1;
};

}  // namespace sim
