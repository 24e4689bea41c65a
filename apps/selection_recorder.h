// What trace and bench hang into the executor: counts what rows select, writes it down, or makes
// them select what a trace says.
//
// Thread: saw() the engine's; the rest whoever made it, while no request runs.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "apps/selection_stats.h"
#include "apps/selection_trace.h"
#include "base/result.h"
#include "exec/selection_tap.h"

namespace apps {

class SelectionRecorder final : public exec::SelectionTap {
 public:
  // Without `watches` it only replays: a GPU serves it, and there are no stats().
  explicit SelectionRecorder(bool watches = true) : watches_(watches) {}
  ~SelectionRecorder() override;

  // Writes a trace from now on. Errors: kIo.
  base::Result<void> write_to(const std::string& path, const TraceHeader& header);
  // Ends the file. Errors: kIo, also of any write before.
  base::Result<void> close();
  // Rows select what the trace says from now on.
  void replay(SelectionTrace trace) { trace_ = std::move(trace); }

  const SelectionStats& stats() const { return stats_; }

  bool watches() const override { return watches_; }
  void saw(const exec::SelectionPlace& place, std::span<const int32_t> pages) override;
  int32_t choose(const exec::SelectionPlace& place, int32_t* pages, int32_t count) const override;

 private:
  void write_row();

  const bool watches_;
  SelectionStats stats_;
  std::optional<SelectionTrace> trace_;
  std::string path_;
  std::FILE* file_ = nullptr;
  bool failed_ = false;
  std::optional<TraceRow> row_;  // heads come one by one
  int32_t num_kv_heads_ = 0;
};

}  // namespace apps
