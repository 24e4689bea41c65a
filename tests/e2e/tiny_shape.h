// What the tests of executors by hand agree on: the shape of a small model, and what a step gave.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/kv_shape.h"
#include "core/model_config.h"
#include "core/step.h"
#include "exec/kv_plan.h"

namespace exec {

// What a step gave a sequence: compared bit by bit.
struct Sampled {
  core::TokenId token = 0;
  std::vector<core::TokenLogprob> top;
};
inline bool same_bits(const Sampled& a, const Sampled& b) {
  return a.token == b.token && std::ranges::equal(a.top, b.top, [](const auto& x, const auto& y) {
           return x.token == y.token && std::memcmp(&x.logprob, &y.logprob, 4) == 0;
         });
}

struct TinyShape {
  int32_t page_tokens = 16, budget_tokens = 64, rows_max = 64, max_num_seqs = 4;
  int32_t context_max = 640, reuse_interval = 1, dense_layers = 0;
  core::HeadKinds heads;
  core::DType kv_type = core::DType::kBF16;

  static constexpr int32_t kLayers = 3, kKvHeads = 2, kVocab = 96;
  core::ModelConfig config(int32_t head_dim) const {
    return {.arch = core::Arch::kQwen3,
            .name = "tiny",
            .num_layers = kLayers,
            .model_dim = 4 * head_dim,
            .ffn_dim = 96,
            .num_q_heads = 4,
            .num_kv_heads = kKvHeads,
            .head_dim = head_dim,
            .vocab_size = kVocab,
            .context_max = context_max,
            .qk_norm = true};
  }
  KvOptions kv(int32_t head_dim) const {
    return {.num_layers = kLayers,
            .num_kv_heads = kKvHeads,
            .page = {.type = kv_type,
                     .page_tokens = page_tokens,
                     .logical_page_tokens = page_tokens,
                     .head_dim = head_dim},
            .heads = heads,
            .rings = heads.any_streaming(),
            .sparse = {.budget_tokens = budget_tokens,
                       .logical_page_tokens = page_tokens,
                       .reuse_interval = reuse_interval,
                       .dense_layers = dense_layers},
            .rows_max = rows_max,
            .max_num_seqs = max_num_seqs,
            .context_max = context_max,
            .num_threads = 2};
  }
};

}  // namespace exec
