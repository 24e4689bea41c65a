#include "exec/cpu_executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/work_done.h"
#include "exec/draw_pages.h"
#include "exec/plan_segments.h"
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
  const int32_t rows =
      options.tier ? HostTier::pool_rows(options.kv, *options.tier) : options.num_blocks;
  ASSIGN_OR_RETURN(DeviceKv kv, DeviceKv::create(options.kv, rows, options.num_blocks));
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

int64_t CpuExecutor::count_device_bytes() const {
  const KvBytes bytes = kv_bytes(options_.kv);
  int64_t total = kv_.bytes() + bytes.slot_state * options_.kv.max_num_seqs + bytes.scratch +
                  model_.workspace_bytes();
  if (tier_ != nullptr) {
    total += HostTier::slot_bytes(options_.kv) * options_.kv.max_num_seqs +
             options_.prefill.bytes(options_.kv);
  }
  return total;
}

base::Result<void> CpuExecutor::allocate(const ops::OpTable& ops) {
  ASSIGN_OR_RETURN(attention_,
                   SparseAttention::create(stream_, ops, options_.kv, config_.num_q_heads, kv_));
  attention_->set_tap(options_.tap);
  if (options_.tier) {
    ASSIGN_OR_RETURN(tier_, HostTier::create(stream_, options_.kv, *options_.tier, kv_,
                                             attention_->selections()));
    attention_->set_tier(tier_.get());
    ASSIGN_OR_RETURN(prefill_, SegmentedPrefill::create(stream_, options_.kv, options_.prefill,
                                                        model_, *attention_, kv_, *tier_));
    if (options_.disk) {
      ASSIGN_OR_RETURN(disk_, DiskTier::create(stream_, options_.kv, *options_.disk,
                                               disk_homes(stream_, ops, options_.kv, kv_, *tier_)));
    }
  }
  sample_workspace_bytes_ = align(ops::sample_workspace_bytes(config_.vocab_size));
  ASSIGN_OR_RETURN(logits_, device::Buffer::allocate(logits_bytes(config_), "logits"));
  ASSIGN_OR_RETURN(sample_workspace_,
                   device::Buffer::allocate(stream_.pool().num_threads() * sample_workspace_bytes_,
                                            "sampling workspace"));
  device_bytes_ = count_device_bytes();
  return {};
}

uint64_t CpuExecutor::progress() const {
  return base::work_done();
}

base::Result<void> CpuExecutor::run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                                    core::StepResult* result) {
  const auto begin = std::chrono::steady_clock::now();
  result->kv = {};
  result->lost.clear();
  result->fetched.clear();
  result->unwritten.clear();
  if (disk_ != nullptr) disk_->run(transfers, plan.segments.empty(), result);
  RETURN_IF_ERROR(check_plan(plan, options_.kv, prefill_ != nullptr));
  move_pages(plan, transfers);
  const std::span<const core::Segment> whole = whole_passes(plan);
  gather_inputs(whole);
  attention_->begin_step(whole);
  model_.forward({.tokens = tokens_,
                  .positions = positions_,
                  .attention = attention_.get(),
                  .layer_begin = 0,
                  .layer_end = config_.num_layers});
  begin_results(plan, config_.num_layers, result);
  for (size_t i = 0; tier_ != nullptr && i < plan.segments.size(); ++i) {
    result->segments[i].error = tier_->error(i);
  }
  attention_->end_step(result);
  finish_rows(plan, result);
  run_segmented(plan, whole.size(), result);
  finish_result(result);
  result->run_us = std::chrono::duration_cast<std::chrono::microseconds>(
                       std::chrono::steady_clock::now() - begin)
                       .count();
  return {};
}

void CpuExecutor::draw_pages(int32_t slot, core::SeqId seq, core::PageStrip* strip) const {
  const core::KvColumns columns = options_.kv.block_columns();
  const int32_t dense_layers = std::min(options_.kv.sparse.dense_layers, config_.num_layers);
  exec::draw_pages({.residency = tier_ != nullptr ? &tier_->residency() : nullptr,
                    .selections = &attention_->selections(),
                    .num_columns = columns.num_columns(),
                    .selecting_begin = columns.layer_begin(dense_layers)},
                   slot, seq, strip);
}

void CpuExecutor::move_pages(const core::StepPlan& plan, const core::TransferPlan& transfers) {
  if (tier_ != nullptr) {
    tier_->begin_step(plan, transfers);
  } else {
    for (const core::BlockCopy& copy : transfers.copies) kv_.copy_tokens(copy);
  }
}

void CpuExecutor::gather_inputs(std::span<const core::Segment> planned) {
  tokens_.clear();
  positions_.clear();
  logits_rows_.clear();
  for (size_t i = 0; i < planned.size(); ++i) {
    const core::Segment& s = planned[i];
    for (int32_t position = s.token_begin; position < s.token_end; ++position) {
      const int32_t row = static_cast<int32_t>(tokens_.size());
      if (position >= s.logits_begin)
        logits_rows_.push_back({row, static_cast<int32_t>(i), position});
      tokens_.push_back(s.tokens[static_cast<size_t>(position)]);
      positions_.push_back(position);
    }
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

// One by one, behind the rest of the step: each is many forward passes of a layer.
void CpuExecutor::run_segmented(const core::StepPlan& plan, size_t begin,
                                core::StepResult* result) {
  for (size_t i = begin; i < plan.segments.size(); ++i) {
    const core::Segment& segment = plan.segments[i];
    prefill_->run(segment, i, [&](int32_t position_begin, int32_t position_end) {
      logits_rows_.clear();
      for (int32_t p = std::max(position_begin, segment.logits_begin); p < position_end; ++p) {
        logits_rows_.push_back({p - position_begin, static_cast<int32_t>(i), p});
      }
      finish_rows(plan, result);
    });
  }
}

void CpuExecutor::finish_result(core::StepResult* result) {
  result->kv.add(attention_->counters());
  if (tier_ != nullptr) {
    tier_->end_step(result);
    result->kv.layers_segmented += prefill_->take_layers_run();
  }
  for (core::SegmentResult& r : result->segments) r.sampled = r.sampled && r.error.empty();
  result->kv.device_bytes_peak = device_bytes_;
}

void CpuExecutor::finish_row(const core::Segment& segment, const LogitsRow& row,
                             std::span<float> logits, int worker, core::SegmentResult* result) {
  if (!result->error.empty()) return;  // its rows may hold anything
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
                   .allowed = segment.allowed,
                   .workspace = {workspace, static_cast<size_t>(sample_workspace_bytes_)}},
                  result->has_logprobs ? &result->logprobs : nullptr);
}

}  // namespace exec
