// What a step takes on a GPU, as arithmetic: bytes over rates, FLOPs over rates. Pure.
//
// It knows nothing of residency or scheduling: who calls it says what is read, computed and moved.
// A rate is what was measured or published for that machine (cost_model.cc says where), not its
// data sheet. The figures are good for orders of magnitude and for which of two designs is faster,
// no more: tests assert on order.
#pragma once

#include <cstdint>

#include "core/kv_options.h"
#include "core/model_config.h"

namespace sim {

struct Machine {
  const char* name = "";       // an identifier
  double hbm_bytes = 0;        // a second
  double matrix_flops = 0;     // a second, in large matrix products
  double attention_flops = 0;  // a second, in prompt attention that fills the machine
  int32_t multiprocessors = 0;
  // Pages of 16 KB between host and device, bytes a second.
  double load_memcpy = 0, load_batched = 0, load_gather = 0;
  double save_memcpy = 0, save_staged = 0;
  double step_us = 0;  // launches and sampling, whatever the step holds

  double load_bytes(core::LoadMethod method) const;
  double save_bytes(core::SaveMethod method) const;
};

const Machine& a100();  // 40 GB, PCIe 4: SparseServe's
const Machine& h200();  // PCIe 5

// L 32, Hq 32, Hk 8, D 128, E 4096, F 14336: the shape of Llama 3 8B.
core::ModelConfig llama_8b();

class CostModel {
 public:
  CostModel(const Machine& machine, const core::ModelConfig& model, int32_t page_tokens);

  int64_t page_bytes() const { return page_bytes_; }  // of one (layer, KV head)
  int64_t weights_bytes() const { return weights_bytes_; }

  // All that is not attention: weights are read once a step, by whatever rows there are.
  // token_layers: the sum over rows of the layers they pass; layers: those that any row passes.
  double linear_us(int64_t token_layers, int32_t layers, int32_t logits_rows) const;

  // Decode rows that attend to `pages` pages in each column, with the statistics of `pages_scored`.
  double decode_attention_us(int64_t pages, int64_t pages_scored) const;

  // Prompt rows [begin, end) of one sequence in one layer. Rows run in tiles of 128, one tile and
  // query head a multiprocessor, in waves: few rows leave the last wave half empty. Pages before
  // `begin` are read again.
  double prompt_attention_us(int32_t begin, int32_t end) const;

  // Pages counted over all columns.
  double load_us(int64_t pages, core::LoadMethod method) const;
  double save_us(int64_t pages, core::SaveMethod method) const;

  const Machine& machine() const { return machine_; }

 private:
  const Machine machine_;
  const core::ModelConfig model_;
  int64_t page_bytes_ = 0, stats_bytes_ = 0, columns_ = 0;
  int64_t layer_weights_ = 0, output_weights_ = 0, weights_bytes_ = 0;  // numbers; bytes
};

}  // namespace sim
