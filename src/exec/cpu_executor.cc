#include "exec/cpu_executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "ops/sample.h"

namespace exec {
namespace {

int64_t align(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

int64_t logits_bytes(const core::ModelConfig& config) {
  return align(int64_t{kLogitsRows} * config.vocab_size * 4);
}

// Stop tokens of a request beyond the model's own; more are allowed but make the executor grow its
// list once.
constexpr size_t kStopIdsReserved = 64;

}  // namespace

int64_t CpuExecutor::staging_bytes(const core::ModelConfig& config, int32_t rows_max,
                                   int32_t num_threads) {
  return logits_bytes(config) +
         num_threads * align(ops::sample_workspace_bytes(config.vocab_size)) +
         rows_max * int64_t{sizeof(LogitsRow) + sizeof(core::TokenId) + 2 * sizeof(int32_t)};
}

base::Result<std::unique_ptr<CpuExecutor>> CpuExecutor::create(device::Stream& stream,
                                                               const ops::OpTable& ops,
                                                               model::Model& model,
                                                               const core::ModelConfig& config,
                                                               const CpuExecutorOptions& options) {
  ASSIGN_OR_RETURN(DeviceKv kv,
                   DeviceKv::create(options.kv, options.num_blocks, options.num_blocks));
  std::unique_ptr<CpuExecutor> made(new CpuExecutor(stream, model, config, options, std::move(kv)));
  RETURN_IF_ERROR(made->allocate(ops));
  return made;
}

CpuExecutor::CpuExecutor(device::Stream& stream, model::Model& model,
                         const core::ModelConfig& config, const CpuExecutorOptions& options,
                         DeviceKv kv)
    : stream_(stream), model_(model), config_(config), options_(options), kv_(std::move(kv)) {
  const auto rows = static_cast<size_t>(options_.kv.rows_max);
  tokens_.reserve(rows);
  positions_.reserve(rows);
  logits_rows_.reserve(rows);
  row_indices_.reserve(kLogitsRows);
  stop_ids_.resize(static_cast<size_t>(stream_.pool().num_threads()));
  for (auto& ids : stop_ids_) ids.reserve(options_.eos.size() + kStopIdsReserved);
}

base::Result<void> CpuExecutor::allocate(const ops::OpTable& ops) {
  ASSIGN_OR_RETURN(attention_,
                   SparseAttention::create(stream_, ops, options_.kv, config_.num_q_heads, kv_));
  attention_->set_tap(options_.tap);
  sample_workspace_bytes_ = align(ops::sample_workspace_bytes(config_.vocab_size));
  ASSIGN_OR_RETURN(logits_, device::Buffer::allocate(logits_bytes(config_), "logits"));
  ASSIGN_OR_RETURN(sample_workspace_,
                   device::Buffer::allocate(stream_.pool().num_threads() * sample_workspace_bytes_,
                                            "sampling workspace"));
  return {};
}

base::Result<void> CpuExecutor::run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                                    core::StepResult* result) {
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(check(plan));
  for (const core::BlockCopy& copy : transfers.copies) kv_.copy_tokens(copy);
  gather_inputs(plan);
  attention_->begin_step(plan);
  model_.forward({.tokens = tokens_,
                  .positions = positions_,
                  .attention = attention_.get(),
                  .layer_begin = 0,
                  .layer_end = config_.num_layers});
  prepare_result(plan, result);
  attention_->end_step(result);
  finish_rows(plan, result);
  result->run_us = std::chrono::duration_cast<std::chrono::microseconds>(
                       std::chrono::steady_clock::now() - begin)
                       .count();
  return {};
}

base::Result<void> CpuExecutor::check(const core::StepPlan& plan) const {
  const KvOptions& kv = options_.kv;
  CHECK(plan.num_rows <= kv.rows_max, "{} rows in a step of {} at most", plan.num_rows,
        kv.rows_max);
  CHECK(plan.segments.size() <= static_cast<size_t>(kv.max_num_seqs), "{} segments",
        plan.segments.size());
  for (const core::Segment& s : plan.segments) {
    CHECK(s.token_begin < s.token_end && s.token_end <= static_cast<int32_t>(s.tokens.size()));
    CHECK(int64_t{s.token_end} <= static_cast<int64_t>(s.blocks.size()) * kv.page.page_tokens);
    CHECK(s.slot >= 0 && s.slot < kv.max_num_seqs && s.token_end <= kv.context_max,
          "slot {} at {} tokens", s.slot, s.token_end);
    if (s.layer_begin != 0 || s.layer_end != config_.num_layers) {
      return base::error(base::Code::kInternal, "the CPU back end runs steps over all layers only");
    }
    if (s.policy.kind == core::AttentionPolicy::Kind::kSparse &&
        (s.policy.budget_tokens < 2 * kv.page.page_tokens ||
         s.policy.budget_tokens > kv.sparse.budget_tokens)) {
      return base::error(base::Code::kInternal, "a budget of {} tokens where {} are the most",
                         s.policy.budget_tokens, kv.sparse.budget_tokens);
    }
  }
  return {};
}

void CpuExecutor::gather_inputs(const core::StepPlan& plan) {
  tokens_.clear();
  positions_.clear();
  logits_rows_.clear();
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const core::Segment& s = plan.segments[i];
    for (int32_t position = s.token_begin; position < s.token_end; ++position) {
      const int32_t row = static_cast<int32_t>(tokens_.size());
      if (position >= s.logits_begin)
        logits_rows_.push_back({row, static_cast<int32_t>(i), position});
      tokens_.push_back(s.tokens[static_cast<size_t>(position)]);
      positions_.push_back(position);
    }
  }
  CHECK(static_cast<int32_t>(tokens_.size()) == plan.num_rows, "{} rows planned, {} found",
        plan.num_rows, tokens_.size());
}

void CpuExecutor::prepare_result(const core::StepPlan& plan, core::StepResult* result) {
  result->step = plan.step;
  result->segments.resize(plan.segments.size());
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const core::Segment& s = plan.segments[i];
    core::SegmentResult& r = result->segments[i];
    r.seq = s.seq;
    r.sampled = s.sample;
    r.has_logprobs = s.sample && s.sampling->logprobs.has_value();
    // Scored positions: the token after each row with logits, as far as it is a prompt token.
    const int32_t scored_end = std::min(s.token_end, s.prompt_len - 1);
    const bool scored = s.sampling->prompt_logprobs.has_value() && scored_end > s.logits_begin;
    r.prompt.resize(scored ? static_cast<size_t>(scored_end - s.logits_begin) : 0);
  }
}

void CpuExecutor::finish_rows(const core::StepPlan& plan, core::StepResult* result) {
  const int64_t width = config_.vocab_size;
  float* const logits = logits_.as<float>();
  for (size_t begin = 0; begin < logits_rows_.size(); begin += kLogitsRows) {
    const size_t count = std::min<size_t>(kLogitsRows, logits_rows_.size() - begin);
    row_indices_.clear();
    for (size_t i = 0; i < count; ++i) row_indices_.push_back(logits_rows_[begin + i].row);
    model_.logits(row_indices_, logits);
    stream_.pool().parallel_for(static_cast<int64_t>(count), [&](int64_t i, int worker) {
      const LogitsRow& row = logits_rows_[begin + static_cast<size_t>(i)];
      const size_t segment = static_cast<size_t>(row.segment);
      finish_row(plan.segments[segment], row, {logits + i * width, static_cast<size_t>(width)},
                 worker, &result->segments[segment]);
    });
  }
}

void CpuExecutor::finish_row(const core::Segment& segment, const LogitsRow& row,
                             std::span<float> logits, int worker, core::SegmentResult* result) {
  const core::SamplingParams& params = *segment.sampling;
  const size_t scored = static_cast<size_t>(row.position - segment.logits_begin);
  if (scored < result->prompt.size()) {
    ops::position_logprobs(logits, segment.tokens[static_cast<size_t>(row.position) + 1],
                           *params.prompt_logprobs, &result->prompt[scored]);
  }
  if (!segment.sample || row.position != segment.token_end - 1) return;
  std::vector<core::TokenId>& stops = stop_ids_[static_cast<size_t>(worker)];
  stops.clear();
  if (segment.token_end - segment.prompt_len < params.min_tokens) {
    stops.insert(stops.end(), options_.eos.begin(), options_.eos.end());
    stops.insert(stops.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
  }
  std::byte* const workspace = sample_workspace_.data() + worker * sample_workspace_bytes_;
  result->token =
      ops::sample({.logits = logits,
                   .params = &params,
                   .tokens = segment.tokens.first(static_cast<size_t>(segment.token_end)),
                   .prompt_len = segment.prompt_len,
                   .stop_ids = stops,
                   .workspace = {workspace, static_cast<size_t>(sample_workspace_bytes_)}},
                  result->has_logprobs ? &result->logprobs : nullptr);
}

}  // namespace exec
