#include "apps/head_calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "apps/heads_file.h"

namespace apps {
namespace {

constexpr int32_t kRows = 512;       // of one forward
constexpr int32_t kLogitsRows = 32;  // of one logits call
constexpr int32_t kPageTokens = 32;

double log_sum_exp(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l - top));
  return top + std::log(sum);
}

// KL(p || q) of two rows of logits, nats.
double divergence(std::span<const float> p, std::span<const float> q) {
  const double p_norm = log_sum_exp(p), q_norm = log_sum_exp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_norm;
    sum += std::exp(log_p) * (log_p - (q[i] - q_norm));
  }
  return std::max(sum, 0.0);
}

std::vector<size_t> choosable_heads(const core::ModelConfig& config) {
  std::vector<size_t> heads;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (int32_t head = 0; head < config.num_kv_heads; ++head) {
      if (!config.windows.at(layer, head).is_streaming())
        heads.push_back(static_cast<size_t>(layer * config.num_kv_heads + head));
    }
  }
  return heads;
}

core::HeadKinds make_kinds(const core::ModelConfig& config, std::span<const size_t> streaming_heads,
                           core::HeadKind streaming) {
  core::HeadKinds kinds{config.num_layers, config.num_kv_heads, {}};
  kinds.kinds.resize(static_cast<size_t>(config.num_layers * config.num_kv_heads));
  for (size_t head : streaming_heads) kinds.kinds[head] = streaming;
  return kinds;
}

// Answers in `logits` (question rows, V) whose every token is the likeliest.
int32_t right_answers(const CalibrationDocument& document, std::span<const float> logits,
                      size_t vocab) {
  int32_t right = 0;
  for (const CalibrationDocument::Answer& answer : document.answers) {
    bool all = true;
    for (int32_t t = answer.begin; t < answer.end; ++t) {
      const auto row =
          logits.subspan(static_cast<size_t>(t - 1 - document.questions_begin) * vocab, vocab);
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      all = all && best == document.tokens[static_cast<size_t>(t)];
    }
    right += all;
  }
  return right;
}

}  // namespace

// Attention as the model has it, compared on the way with what streaming heads would give.
class HeadCalibration::Probe final : public model::LayerAttention {
 public:
  Probe(const core::ModelConfig& config, exec::SequenceAttention& inner)
      : config_(config),
        inner_(inner),
        streaming_(static_cast<size_t>(config.num_kv_heads)),
        kinds_(static_cast<size_t>(config.num_kv_heads)),
        sums_(static_cast<size_t>(config.num_layers * config.num_kv_heads)) {}

  void begin(core::HeadKind streaming) {
    std::fill(streaming_.begin(), streaming_.end(), streaming);
    std::fill(sums_.begin(), sums_.end(), 0.0);
    rows_ = 0;
  }
  // The next forward's rows are positions [begin, end); `counts` says which are measured.
  void set_rows(int32_t begin, int32_t end, std::vector<bool> counts) {
    begin_ = begin;
    end_ = end;
    counts_ = std::move(counts);
    rows_ += std::count(counts_.begin(), counts_.end(), true);
  }
  std::vector<double> errors() const {
    std::vector<double> means = sums_;
    for (double& mean : means) mean /= static_cast<double>(std::max<int64_t>(rows_, 1));
    return means;
  }

  void attend(const model::AttendArgs& args) override {
    inner_.write(args);
    scratch_.resize(static_cast<size_t>(int64_t{end_ - begin_} * args.stride));
    inner_.attend_as(args, streaming_, begin_, end_, scratch_.data());
    for (int32_t head = 0; head < config_.num_kv_heads; ++head)
      kinds_[static_cast<size_t>(head)] = config_.windows.at(args.layer, head);
    inner_.attend_as(args, kinds_, begin_, end_, args.out);
    for (size_t row = 0; row < counts_.size(); ++row) {
      if (counts_[row]) add(args, static_cast<int64_t>(row));
    }
  }

 private:
  void add(const model::AttendArgs& args, int64_t row) {
    const int64_t width =
        int64_t{config_.num_q_heads / config_.num_kv_heads} * config_.head_dim;  // of a KV head
    for (int32_t head = 0; head < config_.num_kv_heads; ++head) {
      const float* const dense = args.out + row * args.stride + head * width;
      const float* const lost = scratch_.data() + row * args.stride + head * width;
      double distance = 0, norm = 0;
      for (int64_t i = 0; i < width; ++i) {
        distance += std::pow(double{lost[i]} - dense[i], 2);
        norm += std::pow(double{dense[i]}, 2);
      }
      sums_[static_cast<size_t>(args.layer * config_.num_kv_heads + head)] +=
          std::sqrt(distance / std::max(norm, 1e-30));
    }
  }

  const core::ModelConfig& config_;
  exec::SequenceAttention& inner_;
  std::vector<core::HeadKind> streaming_, kinds_;  // (Hk)
  std::vector<double> sums_;                       // (L, Hk)
  int64_t rows_ = 0;
  int32_t begin_ = 0, end_ = 0;
  std::vector<bool> counts_;
  std::vector<float> scratch_;
};

base::Result<std::unique_ptr<HeadCalibration>> HeadCalibration::create(
    device::Stream& stream, const ops::OpTable& ops, const load::ModelFiles& files,
    int32_t context_max) {
  const core::ModelConfig& config = files.config;
  const core::PageShape page{core::DType::kBF16, kPageTokens, kPageTokens, config.head_dim};
  ASSIGN_OR_RETURN(auto inner,
                   exec::SequenceAttention::create(stream, ops, config, page, context_max));
  std::unique_ptr<HeadCalibration> made(new HeadCalibration(config, std::move(inner)));
  ASSIGN_OR_RETURN(made->model_, model::create_model(stream, ops, files,
                                                     {.rows_max = kRows,
                                                      .decode_rows_max = 1,
                                                      .logits_rows_max = kLogitsRows,
                                                      .context_max = context_max,
                                                      .page_tokens = kPageTokens},
                                                     {}));
  return made;
}

HeadCalibration::HeadCalibration(const core::ModelConfig& config,
                                 std::unique_ptr<exec::SequenceAttention> inner)
    : config_(config),
      attention_(std::move(inner)),
      probe_(std::make_unique<Probe>(config_, *attention_)) {}

HeadCalibration::~HeadCalibration() = default;

std::vector<double> HeadCalibration::errors(std::span<const CalibrationDocument> documents,
                                            core::HeadKind streaming) {
  attention_->set_heads(config_.windows);
  probe_->begin(streaming);
  for (const CalibrationDocument& document : documents) {
    const int32_t length = static_cast<int32_t>(document.tokens.size());
    feed(document, 0, document.questions_begin);
    std::vector<bool> counts(document.tokens.size());
    for (const CalibrationDocument::Answer& answer : document.answers)
      std::fill(counts.begin() + answer.begin - 1, counts.begin() + answer.end - 1, true);
    for (int32_t begin = document.questions_begin; begin < length; begin += kRows) {
      const int32_t end = std::min(length, begin + kRows);
      probe_->set_rows(begin, end, {counts.begin() + begin, counts.begin() + end});
      std::vector<int32_t> positions(static_cast<size_t>(end - begin));
      std::iota(positions.begin(), positions.end(), begin);
      attention_->set_rows(core::RowKind::kPrompt, begin, end);
      model_->forward(
          {.tokens =
               std::span(document.tokens).subspan(static_cast<size_t>(begin), positions.size()),
           .positions = positions,
           .attention = probe_.get(),
           .layer_begin = 0,
           .layer_end = config_.num_layers});
    }
  }
  return probe_->errors();
}

// Rows of positions [begin, end), at most kRows at a time.
void HeadCalibration::feed(const CalibrationDocument& document, int32_t begin, int32_t end) {
  for (; begin < end; begin += kRows) {
    std::vector<int32_t> positions(static_cast<size_t>(std::min(kRows, end - begin)));
    std::iota(positions.begin(), positions.end(), begin);
    attention_->set_rows(core::RowKind::kPrompt, begin,
                         begin + static_cast<int32_t>(positions.size()));
    model_->forward(
        {.tokens = std::span(document.tokens).subspan(static_cast<size_t>(begin), positions.size()),
         .positions = positions,
         .attention = attention_.get(),
         .layer_begin = 0,
         .layer_end = config_.num_layers});
    tokens_fed_ += static_cast<int64_t>(positions.size());
    if (progress_) progress_(tokens_fed_);
  }
}

std::vector<float> HeadCalibration::question_logits(const CalibrationDocument& document,
                                                    const core::HeadKinds& heads) {
  attention_->set_heads(heads);
  feed(document, 0, document.questions_begin);
  const int32_t length = static_cast<int32_t>(document.tokens.size());
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  std::vector<float> logits(static_cast<size_t>(length - document.questions_begin) * vocab);
  float* out = logits.data();
  for (int32_t begin = document.questions_begin; begin < length; begin += kLogitsRows) {
    const int32_t end = std::min(length, begin + kLogitsRows);
    feed(document, begin, end);
    std::vector<int32_t> rows(static_cast<size_t>(end - begin));
    std::iota(rows.begin(), rows.end(), 0);
    model_->logits(rows, out);
    out += rows.size() * vocab;
  }
  return logits;
}

void HeadCalibration::judge(const CalibrationDocument& document,
                            std::span<const core::HeadKinds> choices,
                            std::span<HeadsQuality> quality, HeadsQuality* dense) {
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  const std::vector<float> expected = question_logits(document, config_.windows);
  const int64_t rows = static_cast<int64_t>(expected.size() / vocab);
  auto add = [&](std::span<const float> logits, HeadsQuality* to) {
    double sum = 0;
    for (size_t at = 0; at < logits.size(); at += vocab)
      sum += divergence(std::span(expected).subspan(at, vocab), logits.subspan(at, vocab));
    to->divergence = (to->divergence * static_cast<double>(to->rows) + sum) /
                     static_cast<double>(to->rows + rows);
    to->rows += rows;
    to->right += right_answers(document, logits, vocab);
    to->asked += static_cast<int32_t>(document.answers.size());
  };
  add(expected, dense);
  for (size_t i = 0; i < choices.size(); ++i)
    add(question_logits(document, merge_heads(config_.windows, choices[i])), &quality[i]);
}

int32_t num_choosable_heads(const core::ModelConfig& config) {
  return static_cast<int32_t>(choosable_heads(config).size());
}

core::HeadKinds least_harmed(const core::ModelConfig& config, std::span<const double> errors,
                             int32_t count, core::HeadKind streaming) {
  std::vector<size_t> heads = choosable_heads(config);
  // Ties to the lower head.
  std::ranges::sort(heads, {}, [&](size_t head) { return std::pair(errors[head], head); });
  heads.resize(std::min(heads.size(), static_cast<size_t>(count)));
  return make_kinds(config, heads, streaming);
}

core::HeadKinds random_heads(const core::ModelConfig& config, int32_t count,
                             core::HeadKind streaming, CalibrationRandom* random) {
  std::vector<size_t> heads = choosable_heads(config);
  for (size_t i = heads.size(); i > 1; --i) std::swap(heads[i - 1], heads[random->below(i)]);
  heads.resize(std::min(heads.size(), static_cast<size_t>(count)));
  return make_kinds(config, heads, streaming);
}

}  // namespace apps
