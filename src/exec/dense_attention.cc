#include "exec/dense_attention.h"

namespace exec {

void DenseAttention::attend(const model::AttendArgs& args) {
  const ops::KvLayer& kv = layers_[static_cast<size_t>(args.layer)];
  ops_.kv_write(stream_, {.kv = kv,
                          .k = args.k,
                          .v = args.v,
                          .k_stride = args.stride,
                          .v_stride = args.stride,
                          .segments = segments_});
  ops_.attention(stream_, {.kv = kv,
                           .q = args.q,
                           .q_stride = args.stride,
                           .num_q_heads = num_q_heads_,
                           .softmax_scale = args.softmax_scale,
                           .segments = segments_,
                           .out = args.out,
                           .out_stride = args.stride,
                           .workspace = args.workspace});
}

}  // namespace exec
