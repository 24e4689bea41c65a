// Attention of one sequence over pages that it has for itself, without an engine: what calibration
// and the tests of whole models run. Every page of every head is kept; a streaming head walks only
// what it sees.
//
// Thread: the stream's. A step allocates nothing.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "core/kv_shape.h"
#include "core/model_config.h"
#include "device/stream.h"
#include "model/model.h"
#include "ops/op_table.h"
#include "store/page_pool.h"

namespace exec {

class SequenceAttention final : public model::LayerAttention {
 public:
  // Pages for `context_max` tokens; heads are as the model has them (windows). `stream` and `ops`
  // must outlive it. REQUIRES: page.type not quantised. Errors: kTooLarge (memory).
  static base::Result<std::unique_ptr<SequenceAttention>> create(device::Stream& stream,
                                                                 const ops::OpTable& ops,
                                                                 const core::ModelConfig& config,
                                                                 const core::PageShape& page,
                                                                 int32_t context_max);

  // From now on heads are of these kinds; empty: all are retrieval heads.
  void set_heads(const core::HeadKinds& heads);
  // The next forward's rows: positions [begin, end), after rows for all of [0, begin).
  void set_rows(core::RowKind kind, int32_t position_begin, int32_t position_end);

  void attend(const model::AttendArgs& args) override;

  // The two parts of attend(). attend_as() computes positions [begin, end) among the rows into
  // `out` (end - begin rows, stride args.stride), for heads of these `kinds` (Hk).
  void write(const model::AttendArgs& args);
  void attend_as(const model::AttendArgs& args, std::span<const core::HeadKind> kinds,
                 int32_t position_begin, int32_t position_end, float* out);

 private:
  SequenceAttention(device::Stream& stream, const ops::OpTable& ops,
                    const core::ModelConfig& config, const core::PageShape& page,
                    store::PagePool pool);
  ops::KvLayer layer(int32_t layer) const;

  device::Stream& stream_;
  const ops::OpTable& ops_;
  const int32_t num_q_heads_, num_kv_heads_;
  const core::PageShape page_;
  store::PagePool pool_;               // (L, Hk) columns
  std::vector<ops::KvHead> heads_;     // (L, Hk)
  std::vector<ops::KvHead> as_heads_;  // (Hk) of an attend_as()
  std::vector<int32_t> frames_;        // page -> frame: the same
  ops::AttentionSegment rows_;
};

}  // namespace exec
