// The tier below the device: homes of sealed pages in host memory, the rows of frames that hold
// some of them, and what moves between the two.
//
// A step begins with the plan's transfers (begin_step) and ends with the saves of the pages that it
// sealed (end_step), which run beside the next step. Inside, attention asks where pages are
// (frames_table) and has what its decode rows selected fetched (exec/page_fetcher.h). Whatever
// fails here fails the sequences concerned: error(). Homes are one pool, column by column, so that
// consecutive homes of a column are one run of memory. Thread: the engine's. A steady step
// allocates nothing.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/step.h"
#include "device/stream.h"
#include "exec/device_kv.h"
#include "exec/kv_plan.h"
#include "exec/page_fetcher.h"
#include "exec/page_saver.h"
#include "exec/residency.h"
#include "store/page_pool.h"
#include "store/transfer_engine.h"

namespace exec {

struct HostTierOptions {
  int32_t num_homes = 0;
  int32_t num_frames = 0;      // rows
  int32_t scratch_frames = 0;  // single pages
  // Streaming heads have homes too, so that a cached prefix brings their windows back.
  bool home_streaming_heads = false;
  store::TransferOptions transfers;  // page_bytes is filled in
};

class HostTier {
 public:
  // Borrows `kv`, whose frames have scratch rows behind num_frames, and `selections`.
  // Errors: kTooLarge.
  static base::Result<std::unique_ptr<HostTier>> create(device::Stream& stream,
                                                        const KvOptions& kv_options,
                                                        const HostTierOptions& options,
                                                        DeviceKv& kv,
                                                        const SelectionState& selections);
  // Rows of frames that the device's pool needs, scratch included.
  static int32_t pool_rows(const KvOptions& kv_options, const HostTierOptions& options);
  // Device bytes of a slot, whatever the number of frames.
  static int64_t slot_bytes(const KvOptions& kv_options);

  // Cuts and loads of the plan; then every segment's pages have frames to be written to, layer
  // buffers aside. `plan` must live until end_step().
  void begin_step(const core::StepPlan& plan, const core::TransferPlan& transfers);
  // Issues saves of the pages that segments without activations have sealed, and reports.
  void end_step(core::StepResult* result);

  bool is_resident(int32_t slot) const { return residency_.is_resident(slot); }
  // Frame of each page of the segment's sequence, counted from row 0 of the head's column; of KV
  // head h at h * frames_head_stride(). Of a sequence that is not resident only the pages that the
  // segment's rows stand in, as list_own_pages() left them, or a layer buffer's.
  const int32_t* frames_table(int32_t slot) const;
  // The same to be filled. REQUIRES: not resident.
  int32_t* listed_frames(int32_t slot) { return private_table(slot); }
  int64_t frames_head_stride(int32_t slot) const;
  // Lists the pages that the segment's rows stand in, at this layer. REQUIRES: not resident.
  void list_own_pages(const core::Segment& segment, int32_t layer);
  // Lists pages [0, page_end) of a layer buffer.
  void list_buffer_pages(const core::Segment& segment, int32_t layer, int32_t page_end);

  // The prompt in layer buffers is through all layers: its sealed pages are at home, its tail (of
  // `tokens`) in its first own row.
  void end_layer_buffers(const core::Segment& segment, int32_t tokens);

  bool homes_streaming_heads() const { return options_.home_streaming_heads; }
  // Where frames_table() says that a page is; null: the head has no frames.
  std::byte* listed_page(int32_t slot, int32_t layer, int32_t head, int32_t page) const;
  std::byte* ring_page(int32_t slot, int32_t layer, int32_t head, int32_t page) const;
  // REQUIRES: the head has homes.
  std::byte* home(const core::Segment& segment, int32_t layer, int32_t head, int32_t page) const {
    return homes_.item(home_columns_.column(layer, head),
                       core::index(segment.blocks[static_cast<size_t>(page)]));
  }

  // SaveLedger::list_saving().
  void list_saving(std::vector<core::BlockId>* blocks) const { saver_->list_saving(blocks); }

  PageFetcher& fetcher() { return *fetcher_; }
  PageSaver& saver() { return *saver_; }
  Residency& residency() { return residency_; }
  store::TransferEngine& transfers() { return *transfers_; }
  const DeviceFrames& frames() const { return frames_; }
  const store::PagePool& homes() const { return homes_; }

  // The segment's result is worth nothing, and why; the first reason stays.
  void fail(size_t segment, const std::string& why);
  // Empty: nothing failed so far.
  const std::string& error(size_t segment);

 private:
  HostTier(device::Stream& stream, const KvOptions& kv_options, const HostTierOptions& options,
           DeviceKv& kv);
  void cut(const core::FrameCut& cut);
  void enter(const core::Segment& segment);
  void load_shared(std::span<const core::BlockMove> loads);
  void restore_ring(const core::Segment& segment);
  void begin_pages(const core::Segment& segment);
  void save_sealed(const core::Segment& segment);

  int32_t* private_table(int32_t slot) const {
    return private_tables_.as<int32_t>() +
           int64_t{slot} * kv_options_.num_kv_heads * kv_options_.pages_max();
  }

  device::Stream& stream_;
  const KvOptions kv_options_;
  const HostTierOptions options_;
  DeviceKv& kv_;
  const DeviceFrames frames_;
  const core::KvColumns home_columns_;
  store::PagePool homes_;
  Residency residency_;
  std::unique_ptr<store::TransferEngine> transfers_;
  std::unique_ptr<PageSaver> saver_;
  std::unique_ptr<PageFetcher> fetcher_;
  device::Buffer private_tables_;  // (slots, Hk, pages_max) int32
  // Of the step.
  const core::StepPlan* plan_ = nullptr;
  std::vector<std::string> errors_;  // by segment
  std::vector<store::PageCopy> copies_;
  core::KvCounters counters_;
  store::TransferCounters moved_;  // through the last step
};

}  // namespace exec
