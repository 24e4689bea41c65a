#include "exec/sequence_attention.h"

#include <numeric>
#include <utility>

#include "base/check.h"

namespace exec {

base::Result<std::unique_ptr<SequenceAttention>> SequenceAttention::create(
    device::Stream& stream, const ops::OpTable& ops, const core::ModelConfig& config,
    const core::PageShape& page, int32_t context_max) {
  CHECK(!page.is_quantised());
  const store::PagePoolShape shape{
      .num_columns = config.num_layers * config.num_kv_heads,
      .num_rows = (context_max + page.page_tokens - 1) / page.page_tokens,
      .item_bytes = page.page_bytes()};
  ASSIGN_OR_RETURN(store::PagePool pool, store::PagePool::create(shape, "KV pages"));
  std::unique_ptr<SequenceAttention> made(
      new SequenceAttention(stream, ops, config, page, std::move(pool)));
  made->set_heads(config.windows);
  return made;
}

SequenceAttention::SequenceAttention(device::Stream& stream, const ops::OpTable& ops,
                                     const core::ModelConfig& config, const core::PageShape& page,
                                     store::PagePool pool)
    : stream_(stream),
      ops_(ops),
      num_q_heads_(config.num_q_heads),
      num_kv_heads_(config.num_kv_heads),
      page_(page),
      pool_(std::move(pool)),
      as_heads_(static_cast<size_t>(config.num_kv_heads)),
      frames_(static_cast<size_t>(pool_.shape().num_rows)) {
  std::iota(frames_.begin(), frames_.end(), 0);
  for (int32_t column = 0; column < pool_.shape().num_columns; ++column)
    heads_.push_back({.base = pool_.column(column)});
}

void SequenceAttention::set_heads(const core::HeadKinds& heads) {
  for (size_t i = 0; i < heads_.size(); ++i)
    heads_[i].kind = heads.kinds.empty() ? core::HeadKind{} : heads.kinds[i];
}

void SequenceAttention::set_rows(core::RowKind kind, int32_t position_begin, int32_t position_end) {
  CHECK(position_end <= pool_.shape().num_rows * page_.page_tokens, "position {}", position_end);
  rows_ = {.kind = kind,
           .row_begin = 0,
           .row_end = position_end - position_begin,
           .position_begin = position_begin,
           .frames = frames_.data(),
           .stream_frames = frames_.data()};
}

ops::KvLayer SequenceAttention::layer(int32_t layer) const {
  const size_t num_heads = static_cast<size_t>(num_kv_heads_);
  return {page_, std::span(heads_).subspan(static_cast<size_t>(layer) * num_heads, num_heads)};
}

void SequenceAttention::write(const model::AttendArgs& args) {
  ops_.kv_write(stream_, {.kv = layer(args.layer),
                          .k = args.k,
                          .v = args.v,
                          .k_stride = args.stride,
                          .v_stride = args.stride,
                          .segments = {&rows_, 1}});
}

void SequenceAttention::attend(const model::AttendArgs& args) {
  write(args);
  ops_.attention(stream_, {.kv = layer(args.layer),
                           .q = args.q,
                           .q_stride = args.stride,
                           .num_q_heads = num_q_heads_,
                           .softmax_scale = args.softmax_scale,
                           .segments = {&rows_, 1},
                           .out = args.out,
                           .out_stride = args.stride,
                           .workspace = args.workspace});
}

void SequenceAttention::attend_as(const model::AttendArgs& args,
                                  std::span<const core::HeadKind> kinds, int32_t position_begin,
                                  int32_t position_end, float* out) {
  const int32_t skipped = position_begin - rows_.position_begin;
  CHECK(skipped >= 0 && position_end - rows_.position_begin <= rows_.row_end);
  ops::KvLayer kv = layer(args.layer);
  for (size_t head = 0; head < as_heads_.size(); ++head)
    as_heads_[head] = {.base = kv.heads[head].base, .kind = kinds[head]};
  kv.heads = as_heads_;
  ops::AttentionSegment part = rows_;
  part.row_end = position_end - position_begin;
  part.position_begin = position_begin;
  ops_.attention(stream_, {.kv = kv,
                           .q = args.q + skipped * args.stride,
                           .q_stride = args.stride,
                           .num_q_heads = num_q_heads_,
                           .softmax_scale = args.softmax_scale,
                           .segments = {&part, 1},
                           .out = out,
                           .out_stride = args.stride,
                           .workspace = args.workspace});
}

}  // namespace exec
