// For tests: makes of any executor one whose steps run beside the engine, as far as that can tell.
//
// submit() runs the step, and nothing of what it did, not even that it failed, is known before
// finish(). Allocates nothing once its results are as large as they get. Thread: the wrapped
// executor's.
#pragma once

#include <utility>

#include "base/check.h"
#include "exec/executor.h"

namespace exec {

class BesideExecutor final : public Executor {
 public:
  explicit BesideExecutor(Executor& wrapped) : wrapped_(wrapped) {}  // borrowed

  ReadyBlocks ready_blocks() const override { return wrapped_.ready_blocks(); }
  uint64_t progress() const override { return wrapped_.progress(); }
  uint64_t num_disk_records() const override { return wrapped_.num_disk_records(); }
  void take_disk_entries(const std::function<void(const core::DiskEntry&)>& entry) override {
    wrapped_.take_disk_entries(entry);
  }
  bool sync_disk(std::span<const uint64_t> used) override { return wrapped_.sync_disk(used); }
  base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                         core::StepResult* result) override {
    return wrapped_.run(plan, transfers, result);
  }
  base::Result<void> submit(const core::StepPlan& plan, const core::TransferPlan& transfers,
                            core::StepResult* result) override {
    CHECK(awaited_ == nullptr, "a step is submitted while one runs");
    awaited_ = result;
    std::swap(*result, late_);  // what the engine has reset
    outcome_ = wrapped_.run(plan, transfers, &late_);
    return {};
  }
  base::Result<void> finish() override {
    CHECK(awaited_ != nullptr, "no step runs");
    std::swap(*std::exchange(awaited_, nullptr), late_);
    return outcome_;
  }
  void draw_pages(int32_t slot, core::SeqId seq, core::PageStrip* strip) const override {
    wrapped_.draw_pages(slot, seq, strip);
  }
  void list_saving(std::vector<core::BlockId>* blocks) const override {
    wrapped_.list_saving(blocks);
  }
  bool is_asynchronous() const override { return true; }

 private:
  Executor& wrapped_;
  core::StepResult late_;  // of the step that runs
  base::Result<void> outcome_;
  core::StepResult* awaited_ = nullptr;
};

}  // namespace exec
