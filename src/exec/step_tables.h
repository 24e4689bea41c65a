// A step's segments as attention sees them: tables of frames, which rows run under selection, which
// pages the step fills.
//
// begin() makes them once a step, for all layers. Thread: the engine's. Allocates in the
// constructor only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/step.h"
#include "exec/host_tier.h"
#include "exec/kv_plan.h"
#include "exec/selection_state.h"
#include "ops/attention.h"

namespace exec {

// A decode row that attends to a selection of its pages.
struct SelectingRow {
  int32_t segment = 0;       // of the plan
  int32_t row = 0;           // of the step
  int32_t position = 0;      // of its sequence
  int32_t num_selected = 0;  // K
  bool fresh = false;        // there is no earlier selection to use again
};

// A page whose last row is among the step's.
struct SealedPage {
  int32_t segment = 0;  // of the plan
  int32_t page = 0;     // of its sequence
};

// A page that the step begins and does not fill, behind the first of its segment: its rows move to
// the slot's open page when the layer is done.
struct CarriedPage {
  int32_t segment = 0;     // of the plan
  int32_t num_tokens = 0;  // of the page
};

class StepTables {
 public:
  explicit StepTables(const KvOptions& options);

  // `planned` must live until the pass ends.
  void begin(std::span<const core::Segment> planned, SelectionState* state);
  // From now on pages are where the host tier says.
  void set_tier(const HostTier* tier) { tier_ = tier; }

  std::span<const core::Segment> planned() const { return planned_; }
  const core::Segment& planned(int32_t segment) const {
    return planned_[static_cast<size_t>(segment)];
  }
  // Every segment of the plan, over all its pages.
  std::span<const ops::AttentionSegment> segments() const { return segments_; }
  // The rows that are not under selection, over all their pages; and those that are, in order.
  std::span<const ops::AttentionSegment> whole_segments() const { return whole_segments_; }
  // Which of planned() each whole segment is of.
  std::span<const int32_t> whole_planned() const { return whole_planned_; }
  std::span<const SelectingRow> selecting_rows() const { return selecting_rows_; }
  std::span<const SealedPage> sealed_pages() const { return sealed_pages_; }

  // Quantised KV. Open frames of the segments' pages, for the heads of `layer`; the first of a
  // segment is its slot's. Must be called before the tables are used in another layer.
  void enter_layer(int32_t layer);
  std::span<const CarriedPage> carried_pages() const { return carried_pages_; }

 private:
  // Frames of the segment's pages from position 0, in the slot's place.
  const int32_t* frames_table(const core::Segment& segment);
  const int32_t* ring_table(const core::Segment& segment);
  const int32_t* open_table(const core::Segment& segment);
  void add(const core::Segment& segment, int32_t row_begin, SelectionState* state);

  const KvOptions options_;
  const core::RingShape ring_;
  bool any_streaming_;
  int32_t local_max_ = 0;  // tokens
  const HostTier* tier_ = nullptr;
  std::span<const core::Segment> planned_;
  std::vector<int32_t> frames_, ring_frames_;  // (max_num_seqs, pages_max)
  std::vector<ops::AttentionSegment> segments_, whole_segments_;
  std::vector<int32_t> whole_planned_;
  std::vector<SelectingRow> selecting_rows_;
  std::vector<SealedPage> sealed_pages_;
  std::vector<int32_t> open_frames_;   // of all segments
  std::vector<size_t> open_borrowed_;  // entries of it that are no slot's, in order
  std::vector<CarriedPage> carried_pages_;
};

}  // namespace exec
