// A model and its KV, fed by hand: what the tests of whole models run.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "exec/sequence_attention.h"
#include "load/model_files.h"
#include "model/model.h"

namespace golden {

using core::DType;
using core::RowKind;
using device::Isa;

constexpr int32_t kPageTokens = 32;

// The instruction sets of this processor.
inline std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::kReference, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= device::detect_isa()) all.push_back(isa);
  }
  return all;
}

class Runner {
 public:
  Runner(const std::string& path, Isa isa, DType kv_type, int32_t rows_max, int32_t context,
         int threads = 2)
      : pool_(threads), stream_(pool_) {
    files_ = load::open_model(path, load::LoadFormat::kAuto, 0).value();
    const core::ModelConfig& c = files_->config;
    attention_ =
        exec::SequenceAttention::create(stream_, ops::op_table(isa), c,
                                        {kv_type, kPageTokens, kPageTokens, c.head_dim}, context)
            .value();
    model_ = model::create_model(stream_, ops::op_table(isa), *files_,
                                 {.rows_max = rows_max,
                                  .decode_rows_max = rows_max,
                                  .logits_rows_max = 64,
                                  .context_max = context,
                                  .page_tokens = kPageTokens},
                                 {})
                 .value();
  }

  const load::ModelFiles& files() const { return *files_; }
  int32_t vocab() const { return files_->config.vocab_size; }

  // Feeds tokens [begin, end) of `ids` as one segment and returns the logits of the rows in
  // [logits_begin, end).
  std::vector<float> feed(std::span<const int32_t> ids, int32_t begin, int32_t end, RowKind kind,
                          int32_t logits_begin) {
    std::vector<int32_t> positions(static_cast<size_t>(end - begin));
    std::iota(positions.begin(), positions.end(), begin);
    attention_->set_rows(kind, begin, end);
    forward(ids.subspan(static_cast<size_t>(begin), positions.size()), positions);
    std::vector<float> out;
    for (int32_t at = logits_begin; at < end; at += 64) {
      std::vector<int32_t> rows;
      for (int32_t p = at; p < std::min(end, at + 64); ++p) rows.push_back(p - begin);
      const size_t old = out.size();
      out.resize(old + rows.size() * static_cast<size_t>(vocab()));
      model_->logits(rows, out.data() + old);
    }
    return out;
  }

  // From now on each forward runs `layers` layers at a time, the rows waiting in between.
  void split_layers(int32_t layers) { layers_at_once_ = layers; }

  // Logits of all tokens, fed in chunks of `chunk` rows.
  std::vector<float> run(std::span<const int32_t> ids, int32_t chunk, RowKind kind) {
    std::vector<float> all;
    for (int32_t begin = 0, n = static_cast<int32_t>(ids.size()); begin < n; begin += chunk) {
      std::vector<float> part = feed(ids, begin, std::min(n, begin + chunk), kind, begin);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  void forward(std::span<const int32_t> tokens, std::span<const int32_t> positions) {
    const int32_t num_layers = files_->config.num_layers;
    model::ForwardArgs args{tokens, positions, attention_.get(), 0, num_layers, nullptr};
    if (layers_at_once_ == 0) return model_->forward(args);
    hidden_.assign(tokens.size() * static_cast<size_t>(files_->config.model_dim), NAN);
    args.hidden = hidden_.data();
    for (args.layer_begin = 0; args.layer_begin < num_layers; args.layer_begin = args.layer_end) {
      args.layer_end = std::min(args.layer_begin + layers_at_once_, num_layers);
      model_->forward(args);
    }
  }

  base::ThreadPool pool_;
  device::Stream stream_;
  std::unique_ptr<load::ModelFiles> files_;
  std::unique_ptr<exec::SequenceAttention> attention_;
  std::unique_ptr<model::Model> model_;
  int32_t layers_at_once_ = 0;
  std::vector<float> hidden_;
};

}  // namespace golden
