#include "sim/cost_model.h"

#include <algorithm>
#include <cmath>

namespace sim {
namespace {

constexpr double kMicro = 1e6;
constexpr int32_t kTileRows = 128;
constexpr int32_t kElement = 2;  // bytes, BF16

double over(double amount, double rate) {
  return kMicro * amount / rate;
}

}  // namespace

double Machine::load_bytes(core::LoadMethod method) const {
  switch (method) {
    case core::LoadMethod::kMemcpy:
      return load_memcpy;
    case core::LoadMethod::kBatched:
      return load_batched;
    case core::LoadMethod::kAuto:  // start-up picks the fastest
    case core::LoadMethod::kUva:
    case core::LoadMethod::kBulk:
    case core::LoadMethod::kUvaPage:
    case core::LoadMethod::kStaged:
      return load_gather;
  }
  return load_memcpy;
}

double Machine::save_bytes(core::SaveMethod method) const {
  return method == core::SaveMethod::kMemcpy ? save_memcpy : save_staged;
}

// SparseServe (arXiv 2509.24626): pages of 16 KB one by one below 4 GB/s, FlashH2D over 20,
// FlashD2H over 23 GB/s. HBM and tensor cores: the data sheet's 1,555 GB/s and 312 TFLOP/s, of
// which large products reach about two thirds and attention a little over half.
const Machine& a100() {
  static const Machine machine{.name = "A100",
                               .hbm_bytes = 1.4e12,
                               .matrix_flops = 200e12,
                               .attention_flops = 170e12,
                               .multiprocessors = 108,
                               .load_memcpy = 3.8e9,
                               .load_batched = 7e9,
                               .load_gather = 20e9,
                               .save_memcpy = 3.8e9,
                               .save_staged = 23e9,
                               .step_us = 1000};
  return machine;
}

// Measured on one: reads of HBM 4,400 GB/s; pages of 16 KB one by one 5.1 GB/s, batched
// copies 17.7, gathered by the device 51.2; one large copy 55.4; cuDNN's attention 661 TFLOP/s.
const Machine& h200() {
  static const Machine machine{.name = "H200",
                               .hbm_bytes = 4.4e12,
                               .matrix_flops = 700e12,
                               .attention_flops = 600e12,
                               .multiprocessors = 132,
                               .load_memcpy = 5.1e9,
                               .load_batched = 17.7e9,
                               .load_gather = 51.2e9,
                               .save_memcpy = 5.1e9,
                               .save_staged = 55.4e9,
                               .step_us = 500};
  return machine;
}

core::ModelConfig llama_8b() {
  core::ModelConfig model;
  model.num_layers = 32;
  model.model_dim = 4096;
  model.ffn_dim = 14336;
  model.num_q_heads = 32;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  model.vocab_size = 128256;
  model.context_max = 131072;
  return model;
}

CostModel::CostModel(const Machine& machine, const core::ModelConfig& model, int32_t page_tokens)
    : machine_(machine), model_(model) {
  const int64_t e = model.model_dim, d = model.head_dim;
  page_bytes_ = int64_t{2} * page_tokens * d * kElement;
  stats_bytes_ = 2 * d * kElement;  // (centre, half-width) of a page
  columns_ = int64_t{model.num_layers} * model.num_kv_heads;
  const int64_t attention = e * d * (2 * model.num_q_heads + 2 * model.num_kv_heads);
  layer_weights_ = attention + 3 * e * model.ffn_dim;
  output_weights_ = e * model.vocab_size;
  weights_bytes_ = kElement * (model.num_layers * layer_weights_ + 2 * output_weights_);
}

double CostModel::linear_us(int64_t token_layers, int32_t layers, int32_t logits_rows) const {
  if (token_layers == 0) return 0;
  const double numbers = static_cast<double>(layers) * static_cast<double>(layer_weights_) +
                         (logits_rows > 0 ? static_cast<double>(output_weights_) : 0);
  const double flops =
      2.0 * (static_cast<double>(token_layers) * static_cast<double>(layer_weights_) +
             logits_rows * static_cast<double>(output_weights_));
  return std::max(over(kElement * numbers, machine_.hbm_bytes), over(flops, machine_.matrix_flops));
}

double CostModel::decode_attention_us(int64_t pages, int64_t pages_scored) const {
  const int64_t bytes = columns_ * (pages * page_bytes_ + pages_scored * stats_bytes_);
  return over(static_cast<double>(bytes), machine_.hbm_bytes);
}

double CostModel::prompt_attention_us(int32_t begin, int32_t end) const {
  const double rows = end - begin, context = begin + rows / 2;  // a row sees all before it
  const double heads = model_.num_q_heads;
  const double flops = 4.0 * rows * context * heads * model_.head_dim;
  const double tiles = std::ceil(rows / kTileRows) * heads;
  const double waves = std::ceil(tiles / machine_.multiprocessors);
  const double filled = tiles / (waves * machine_.multiprocessors);
  const double read = 2.0 * begin * model_.num_kv_heads * model_.head_dim * kElement;
  return over(flops, machine_.attention_flops * filled) + over(read, machine_.hbm_bytes);
}

double CostModel::load_us(int64_t pages, core::LoadMethod method) const {
  return over(static_cast<double>(pages * page_bytes_), machine_.load_bytes(method));
}

double CostModel::save_us(int64_t pages, core::SaveMethod method) const {
  return over(static_cast<double>(pages * page_bytes_), machine_.save_bytes(method));
}

}  // namespace sim
