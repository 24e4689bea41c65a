// The tables of exec/cuda/slot_tables.h in device memory, and what is done to them there.
//
// Edits are collected on the host, copied up and applied by one small kernel: flush(), once a step
// before anything reads the tables, and before whatever must see them in between. Thread: the
// engine's; contents belong to the compute stream. A steady step allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/cuda/runtime.h"
#include "exec/cuda/slot_tables.h"
#include "ops/cuda/page_ops.h"

namespace exec::cuda {

struct SlotMemoryOptions {
  int32_t num_slots = 0;
  int32_t pages_max = 0;
  bool tiered = false;
};

class SlotMemory final : public SlotDevice {
 public:
  // `stream` must outlive it. Errors: kTooLarge.
  static base::Result<std::unique_ptr<SlotMemory>> create(device::cuda::Stream& stream,
                                                          const SlotMemoryOptions& options);
  // Of a slot, in device memory.
  static int64_t slot_bytes(int32_t pages_max, bool tiered) {
    return int64_t{pages_max} * 4 * (tiered ? 3 : 1);
  }

  // Of edits on their way, in device memory.
  static constexpr int64_t edit_bytes() {
    return int64_t{kBatches} * kBatchEdits * int64_t{sizeof(TableEdit)};
  }

  // With a host tier, before the first edit: the residency that edits and shrink() change, and the
  // frames that move (columns_of as ops::cuda::ShrinkArgs). frames_max is pages_max.
  void set_residency(const ops::cuda::SelectState& state, const ops::cuda::KvPool& pool,
                     const int32_t* columns_of);
  // The same for columns of dense layers, whose stamps are forgotten with a slot's entries too.
  void set_dense_residency(const ops::cuda::SelectState& state, const int32_t* columns_of);

  // (slots, pages_max) in device memory. Without a host tier blocks are rows.
  const int32_t* rows() const { return rows_.as<int32_t>(); }
  const int32_t* blocks() const { return tiered_ ? blocks_.as<int32_t>() : rows(); }
  const int32_t* own_rows() const { return own_rows_.as<int32_t>(); }

  void edit(const TableEdit& edit) override;
  void shrink(int32_t slot, int32_t num_frames, int32_t keep, int32_t saved_pages) override;
  void copy_row(core::FrameId from, core::FrameId to) override;
  // Applies the edits so far, in order.
  void flush();

 private:
  // Edits on their way, several batches of them.
  static constexpr size_t kBatches = 8;
  static constexpr int32_t kBatchEdits = 4096;

  SlotMemory(device::cuda::Stream& stream, const SlotMemoryOptions& options)
      : stream_(stream),
        num_slots_(options.num_slots),
        pages_max_(options.pages_max),
        tiered_(options.tiered) {}
  // Columns of one kind.
  struct Columns {
    ops::cuda::SelectState state;  // num_columns 0: none
    const int32_t* columns_of = nullptr;
  };
  void clear_slot(const TableEdit& edit);
  void complete(ops::cuda::SelectState* state) const;

  device::cuda::Stream& stream_;
  const int32_t num_slots_, pages_max_;
  const bool tiered_;
  Columns selecting_, dense_;
  ops::cuda::KvPool pool_;
  device::cuda::Buffer rows_, blocks_, own_rows_;
  device::cuda::PinnedBuffer host_edits_;
  device::cuda::Buffer edits_;
  std::array<device::cuda::Event, kBatches> applied_;
  std::array<bool, kBatches> is_used_{};
  size_t batch_ = 0;
  int32_t num_edits_ = 0;  // of the batch
};

}  // namespace exec::cuda
