// Which KV heads a model can do without the middle of its context: measured, not trained.
//
// One dense pass over documents with planted facts computes, at the rows that answer, each layer's
// attention twice: as the model has it, and as if every head saw its sink and last tokens alone. A
// head's error is the mean over those rows of the relative L2 distance between the two outputs of
// its query heads. Heads of small error may stream. What a choice costs is then measured on other
// documents: the divergence of the next token's distribution and the answers still right.
// Thread: the stream's.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "apps/calibration_text.h"
#include "base/result.h"
#include "core/kv_shape.h"
#include "device/stream.h"
#include "exec/sequence_attention.h"
#include "load/model_files.h"
#include "model/model.h"
#include "ops/op_table.h"

namespace apps {

// What a choice of heads costs on some documents, against all heads dense.
struct HeadsQuality {
  double divergence = 0;  // mean KL(dense || choice) of the next token, nats, over question rows
  int64_t rows = 0;
  int32_t right = 0, asked = 0;  // answers whose every token is the likeliest
};

class HeadCalibration {
 public:
  // Packs the model. `context_max` tokens: of the longest document. `stream` and `ops` must outlive
  // it. Errors: kTooLarge (memory).
  static base::Result<std::unique_ptr<HeadCalibration>> create(device::Stream& stream,
                                                               const ops::OpTable& ops,
                                                               const load::ModelFiles& files,
                                                               int32_t context_max);
  ~HeadCalibration();

  // Told of the tokens computed so far, every few hundred of them.
  void set_progress(std::function<void(int64_t tokens)> progress) {
    progress_ = std::move(progress);
  }

  // (L, Hk) errors of heads that become `streaming`.
  std::vector<double> errors(std::span<const CalibrationDocument> documents,
                             core::HeadKind streaming);

  // The quality of each choice over the document, added to `quality`; the dense model's answers to
  // `dense`. REQUIRES: one quality a choice.
  void judge(const CalibrationDocument& document, std::span<const core::HeadKinds> choices,
             std::span<HeadsQuality> quality, HeadsQuality* dense);

 private:
  class Probe;
  HeadCalibration(const core::ModelConfig& config, std::unique_ptr<exec::SequenceAttention> inner);
  void feed(const CalibrationDocument& document, int32_t begin, int32_t end);
  std::vector<float> question_logits(const CalibrationDocument& document,
                                     const core::HeadKinds& heads);

  const core::ModelConfig config_;
  std::unique_ptr<exec::SequenceAttention> attention_;
  std::unique_ptr<Probe> probe_;
  std::unique_ptr<model::Model> model_;
  std::function<void(int64_t)> progress_;
  int64_t tokens_fed_ = 0;
};

// Heads that may be chosen: those that the model's own windows do not make streaming.
int32_t num_choosable_heads(const core::ModelConfig& config);
// `count` of them, those of least error; ties to the lower layer and head. The result holds the
// choice alone, without the model's windows.
core::HeadKinds least_harmed(const core::ModelConfig& config, std::span<const double> errors,
                             int32_t count, core::HeadKind streaming);
// As many, drawn at random.
core::HeadKinds random_heads(const core::ModelConfig& config, int32_t count,
                             core::HeadKind streaming, CalibrationRandom* random);

}  // namespace apps
