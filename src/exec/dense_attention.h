// Dense attention of a model's layers over pages in frames: K and V of the step's rows into their
// pages, then every row over all pages of its sequence.
#pragma once

#include <span>

#include "device/stream.h"
#include "model/model.h"
#include "ops/op_table.h"

namespace exec {

class DenseAttention final : public model::LayerAttention {
 public:
  // `stream` and `ops` must outlive it.
  DenseAttention(device::Stream& stream, const ops::OpTable& ops, int32_t num_q_heads)
      : stream_(stream), ops_(ops), num_q_heads_(num_q_heads) {}

  // What the next forward's rows are: `segments` cover them all, `layers` (L) hold their pages.
  // Both must stay valid until it ends.
  void set_step(std::span<const ops::AttentionSegment> segments,
                std::span<const ops::KvLayer> layers) {
    segments_ = segments;
    layers_ = layers;
  }

  void attend(const model::AttendArgs& args) override;

 private:
  device::Stream& stream_;
  const ops::OpTable& ops_;
  const int32_t num_q_heads_;
  std::span<const ops::AttentionSegment> segments_;
  std::span<const ops::KvLayer> layers_;
};

}  // namespace exec
