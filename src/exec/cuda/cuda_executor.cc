#include "exec/cuda/cuda_executor.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/sizes.h"
#include "device/cuda/memory_count.h"
#include "exec/plan_segments.h"
#include "ops/cuda/decode_limits.h"
#include "ops/cuda/select_limits.h"

namespace exec::cuda {
namespace {

bool is_quantised(const KvOptions& kv) {
  return kv.page.is_quantised();
}

const char* describe(int32_t select_error) {
  switch (select_error) {
    case ops::cuda::kOutOfScratch:
      return "missed pages found no frame";
    case ops::cuda::kPageIsNowhere:
      return "a selected page is nowhere";
    case ops::cuda::kListTooLong:
      return "a selection was too long";
    default:
      return "a selection was lost";
  }
}

// Lists of pages are kept in the shared memory of a block: what does not fit there is refused
// before the first step.
base::Result<void> check_lists(const KvOptions& kv, bool tiered) {
  const int64_t listed = ops::cuda::select_list_max(kv.pages_max());
  if (kv.listed_max() > listed) {
    return base::error(
        base::Code::kUnsupported,
        "--budget {}: a KV head's list of {} pages, this GPU's kernels hold {}: use "
        "--budget {} at most, or a larger --page-size",
        kv.sparse.budget_tokens, kv.listed_max(), listed,
        std::max<int64_t>(0, listed - (kv.listed_max() - kv.selected_max())) * kv.page.page_tokens);
  }
  const int64_t frames = ops::cuda::shrink_frames_max();
  if (tiered && kv.pages_max() > frames) {
    return base::error(base::Code::kUnsupported,
                       "--max-model-len {}: {} pages of a sequence, with a host tier this GPU's "
                       "kernels hold {}: use --max-model-len {} at most, or a larger --page-size",
                       kv.context_max, kv.pages_max(), frames, frames * kv.page.page_tokens);
  }
  const int32_t places = kv.decode_rows_max() * kv.num_kv_heads;
  if (tiered && places > store::cuda::kGatherPlacesMax) {
    return base::error(base::Code::kUnsupported,
                       "--max-num-seqs {}: with {} KV heads a gather takes the lists of {} rows: "
                       "use --max-num-seqs {}",
                       kv.max_num_seqs, kv.num_kv_heads,
                       store::cuda::kGatherPlacesMax / kv.num_kv_heads,
                       store::cuda::kGatherPlacesMax / kv.num_kv_heads);
  }
  return {};
}

void read_logprobs(const ops::cuda::SampleResult& from, core::PositionLogprobs* to) {
  to->token = {from.token, from.logprob};
  to->rank = from.rank;
  to->top.clear();
  for (int32_t i = 0; i < from.num_top; ++i) {
    to->top.push_back({from.top_tokens[i], from.top_logprobs[i]});
  }
}

}  // namespace

int64_t CudaExecutor::staging_bytes(const core::ModelConfig& config,
                                    const CudaExecutorOptions& options, int num_sms) {
  const KvOptions& kv = options.kv;
  const int32_t rows = kv.logits_rows_max();
  int64_t bytes = StepInputs::arena_bytes(kv) + StepOutputs::bytes(kv) +
                  SampleInputs::bytes(kv, config.vocab_size) +
                  CudaAttention::workspace_bytes(kv, config.num_q_heads, num_sms) +
                  int64_t{rows} * config.vocab_size * 4 +
                  ops::cuda::sample_workspace_bytes(rows, config.vocab_size) +
                  CudaKv::head_bytes(kv) + SlotMemory::edit_bytes();
  if (options.tap != nullptr) bytes += ForcedSelections::bytes(kv);
  if (!options.tier) return bytes;
  return bytes + DenseLists::column_bytes(kv) + CudaTier::transfer_bytes(kv, *options.tier);
}

base::Result<void> CudaExecutor::check(const device::cuda::GpuInfo& gpu,
                                       const core::ModelConfig& config, const KvOptions& kv) {
  const int64_t least = ops::cuda::decode_shared_least(
      kv.page, kv.decode_rows_max(), config.num_q_heads, kv.num_kv_heads, kv.context_max);
  if (least <= gpu.shared_bytes_max) return {};
  return base::error(base::Code::kUnsupported,
                     "decoding {} KV of heads with {} channels takes {} of shared memory a block, "
                     "{} has {}: use --kv-cache-dtype bf16, or --device cpu",
                     core::info(kv.page.type).name, kv.page.head_dim, base::format_bytes(least),
                     gpu.name, base::format_bytes(gpu.shared_bytes_max));
}

base::Result<std::unique_ptr<CudaExecutor>> CudaExecutor::create(
    const device::cuda::GpuInfo& gpu, std::unique_ptr<device::cuda::Stream> stream,
    std::unique_ptr<model::cuda::Decoder> decoder, const CudaExecutorOptions& options) {
  CHECK(options.kv.gpu);
  RETURN_IF_ERROR(check(gpu, decoder->config(), options.kv));
  ASSIGN_OR_RETURN(
      CudaKv kv,
      CudaKv::create(*stream, options.kv,
                     {.num_rows = options.tier ? options.tier->num_frames : options.num_blocks,
                      .scratch_frames = options.tier ? options.tier->scratch_frames : 0,
                      .num_blocks = options.kv.is_sparse() ? options.num_blocks : 0}));
  std::unique_ptr<CudaExecutor> made(
      new CudaExecutor(gpu, std::move(stream), std::move(decoder), options, std::move(kv)));
  RETURN_IF_ERROR(made->allocate());
  return made;
}

CudaExecutor::CudaExecutor(const device::cuda::GpuInfo& gpu,
                           std::unique_ptr<device::cuda::Stream> stream,
                           std::unique_ptr<model::cuda::Decoder> decoder,
                           const CudaExecutorOptions& options, CudaKv kv)
    : gpu_(gpu),
      stream_(std::move(stream)),
      decoder_(std::move(decoder)),
      options_(options),
      kv_(std::move(kv)) {}

// Memory that the last step still uses must outlive it.
CudaExecutor::~CudaExecutor() {
  if (stream_ == nullptr) return;
  const base::Result<void> done = stream_->synchronize();
  static_cast<void>(done);
}

base::Result<void> CudaExecutor::allocate() {
  const KvOptions& kv = options_.kv;
  if (kv_.selecting().num_columns() > 0) {
    RETURN_IF_ERROR(check_lists(kv, options_.tier.has_value()));
  }
  const core::ModelConfig& config = decoder_->config();
  const bool tiered = options_.tier.has_value();
  if (kv_.selecting().num_columns() > 0) {
    ASSIGN_OR_RETURN(SelectMemory select, SelectMemory::create(*stream_, kv, tiered));
    select_ = std::make_unique<SelectMemory>(std::move(select));
  }
  ASSIGN_OR_RETURN(slot_memory_, SlotMemory::create(*stream_, {.num_slots = kv.max_num_seqs,
                                                               .pages_max = kv.pages_max(),
                                                               .tiered = tiered}));
  tables_ = std::make_unique<SlotTables>(SlotTablesShape{.num_slots = kv.max_num_seqs,
                                                         .pages_max = kv.pages_max(),
                                                         .page_tokens = kv.page.page_tokens,
                                                         .tiered = tiered},
                                         *slot_memory_);
  if (tiered) RETURN_IF_ERROR(allocate_tier());
  ASSIGN_OR_RETURN(inputs_,
                   StepInputs::create(kv, slot_memory_->rows(), select_.get(), tier_.get()));
  ASSIGN_OR_RETURN(outputs_, StepOutputs::create(kv));
  const int32_t logits_rows = kv.logits_rows_max();
  ASSIGN_OR_RETURN(samples_,
                   SampleInputs::create(kv, config.vocab_size, logits_rows, options_.eos));
  ASSIGN_OR_RETURN(attention_,
                   CudaAttention::create(gpu_, *stream_, kv, config.num_q_heads, kv_, select_.get(),
                                         tier_.get(), slot_memory_->rows(), *inputs_, outputs_));
  attention_->set_dense(dense_.get());
  if (options_.tap != nullptr && select_ != nullptr) {
    ASSIGN_OR_RETURN(forced_, ForcedSelections::create(kv, *options_.tap));
    attention_->set_forced(forced_.get());
  }
  ASSIGN_OR_RETURN(logits_, device::cuda::Buffer::allocate(
                                int64_t{logits_rows} * config.vocab_size * 4, "logits"));
  ASSIGN_OR_RETURN(
      sample_workspace_,
      device::cuda::Buffer::allocate(
          ops::cuda::sample_workspace_bytes(logits_rows, config.vocab_size), "sampling workspace"));
  stream_->fill(sample_workspace_.data(), 0, sample_workspace_.size());
  edits_moved_ = samples_.moved();
  RETURN_IF_ERROR(stream_->synchronize());
  // What loading weights and choosing transfers took for a while is not in the plan.
  device::cuda::device_memory().mark();
  return {};
}

base::Result<void> CudaExecutor::allocate_tier() {
  CHECK(select_ != nullptr, "a host tier without selection");
  slot_memory_->set_residency(select_->state(), kv_.pool(), kv_.frame_column_of());
  ASSIGN_OR_RETURN(tier_, CudaTier::create(gpu_, options_.kv, *options_.tier,
                                           {.stream = stream_.get(),
                                            .kv = &kv_,
                                            .memory = slot_memory_.get(),
                                            .tables = tables_.get()}));
  if (options_.kv.dense_columns().num_columns() > 0) {
    ASSIGN_OR_RETURN(dense_, DenseLists::create(gpu_, *stream_, options_.kv, kv_));
    slot_memory_->set_dense_residency(dense_->state(), dense_->frame_column_of());
  }
  if (options_.disk) {
    ASSIGN_OR_RETURN(disk_, CudaDisk::create(*stream_, options_.kv, *options_.disk, kv_, *tier_));
  }
  if (options_.prefill.activation_pages == 0) return {};
  ASSIGN_OR_RETURN(prefill_,
                   SegmentedPrefill::create(*stream_, options_.kv, options_.prefill, *tier_));
  return {};
}

base::Result<void> CudaExecutor::run(const core::StepPlan& plan,
                                     const core::TransferPlan& transfers,
                                     core::StepResult* result) {
  RETURN_IF_ERROR(submit(plan, transfers, result));
  return finish();
}

base::Result<void> CudaExecutor::submit(const core::StepPlan& plan,
                                        const core::TransferPlan& transfers,
                                        core::StepResult* result) {
  began_ = std::chrono::steady_clock::now();
  result_ = result;
  enqueued_ = nullptr;
  result->kv = {};
  result->lost.clear();
  result->fetched.clear();
  result->unwritten.clear();
  RETURN_IF_ERROR(device::cuda::use_gpu(gpu_));
  if (disk_ != nullptr) disk_->tier().run(transfers, plan.segments.empty(), result);
  RETURN_IF_ERROR(check_plan(plan, options_.kv, prefill_ != nullptr));
  RETURN_IF_ERROR(move_pages(plan, transfers));
  begin_results(plan, options_.kv.num_layers, result);
  const std::span<const core::Segment> whole = whole_passes(plan);
  RETURN_IF_ERROR(enqueue_pass(whole, result));
  if (whole.size() < plan.segments.size()) {
    RETURN_IF_ERROR(finish_pass());
    RETURN_IF_ERROR(run_segmented(plan, whole.size(), result));
  }
  if (tier_ != nullptr) tier_->save_step();
  return {};
}

base::Result<void> CudaExecutor::finish() {
  RETURN_IF_ERROR(finish_pass());
  if (tier_ != nullptr) tier_->end_step(result_);
  for (core::SegmentResult& r : result_->segments) r.sampled = r.sampled && r.error.empty();
  result_->kv.device_bytes_peak = device::cuda::device_memory().peak() - decoder_->weight_bytes();
  result_->run_us = std::chrono::duration_cast<std::chrono::microseconds>(
                        std::chrono::steady_clock::now() - began_)
                        .count();
  return {};
}

base::Result<void> CudaExecutor::move_pages(const core::StepPlan& plan,
                                            const core::TransferPlan& transfers) {
  if (tier_ != nullptr) return tier_->begin_step(plan, transfers);
  for (const core::BlockCopy& copy : transfers.copies) kv_.copy_tokens(*stream_, copy);
  for (const core::Segment& segment : plan.segments) tables_->enter(segment, 0);
  slot_memory_->flush();
  return {};
}

// 0, unless every segment is one decode row that is sampled.
int32_t CudaExecutor::padding_of(std::span<const core::Segment> planned) const {
  for (const core::Segment& s : planned) {
    if (s.kind != core::RowKind::kDecode || s.token_end - s.token_begin != 1 ||
        s.logits_begin > s.token_begin) {
      return 0;
    }
  }
  return planned.empty() ? 0 : options_.kv.padded_rows(static_cast<int32_t>(planned.size()));
}

base::Result<void> CudaExecutor::enqueue_pass(std::span<const core::Segment> planned,
                                              core::StepResult* result) {
  const int32_t pad_rows = padding_of(planned);
  ASSIGN_OR_RETURN(const Pass* const pass, inputs_->build(*stream_, planned, pad_rows));
  outputs_.begin(pass->selects_max, pass->logits_max);
  RETURN_IF_ERROR(samples_.build(*stream_, planned, pass->host_logits_rows, pass->logits_max));
  inputs_->upload(*stream_);
  if (forced_ != nullptr) forced_->upload(*stream_, *pass);
  if (pass->num_rows > 0) {
    RETURN_IF_ERROR(launch(*pass, pad_rows, result));
    outputs_.download(*stream_, static_cast<int32_t>(pass->host_logits_rows.size()));
  }
  if (forced_ != nullptr) forced_->prepare_next(*pass);
  enqueued_ = pass;
  return {};
}

// Waits for the pass, if one is on its way, and reads what it left.
base::Result<void> CudaExecutor::finish_pass() {
  const Pass* const pass = std::exchange(enqueued_, nullptr);
  if (pass == nullptr) return {};
  RETURN_IF_ERROR(stream_->synchronize());
  if (pass->num_rows == 0) return {};
  RETURN_IF_ERROR(read_selections(*pass, result_));
  return read_logits(*pass, 0, result_);
}

// One by one, behind the rest of the step: each is many passes of a layer.
base::Result<void> CudaExecutor::run_segmented(const core::StepPlan& plan, size_t begin,
                                               core::StepResult* result) {
  for (size_t i = begin; i < plan.segments.size(); ++i) {
    RETURN_IF_ERROR(prefill_->run(plan.segments[i], i, *this));
  }
  if (prefill_ == nullptr) return {};
  result->kv.layers_segmented += prefill_->take_layers_run();
  return stream_->synchronize();
}

base::Result<void> CudaExecutor::run_tile(const core::Segment& tile, size_t index, int32_t layer,
                                          float* hidden) {
  const KvOptions& kv = options_.kv;
  const bool is_last = layer + 1 == kv.num_layers;
  ASSIGN_OR_RETURN(const Pass* const pass, inputs_->build(*stream_, {&tile, 1}, 0));
  const bool has_logits = is_last && pass->logits_max > 0;
  outputs_.begin(pass->selects_max, has_logits ? pass->logits_max : 0);
  if (has_logits) {
    RETURN_IF_ERROR(samples_.build(*stream_, {&tile, 1}, pass->host_logits_rows, pass->logits_max));
  }
  inputs_->upload(*stream_);
  attention_->begin_pass(*stream_);
  RETURN_IF_ERROR(decoder_->forward({.tokens = pass->rows.tokens,
                                     .num_rows = pass->num_rows,
                                     .attention = attention_.get(),
                                     .layer_begin = layer,
                                     .layer_end = layer + 1,
                                     .hidden = hidden,
                                     .fill_random = options_.fill_random}));
  attention_->end_pass(*stream_, layer, layer + 1);
  result_->kv.pages_sealed += int64_t{pass->num_sealed} * kv_.num_selecting(layer);
  if (is_quantised(kv)) {
    result_->kv.pages_quantised += int64_t{pass->num_sealed} * kv.num_kv_heads;
  }
  return has_logits ? finish_tile(*pass, index) : base::Result<void>{};
}

base::Result<void> CudaExecutor::finish_tile(const Pass& pass, size_t index) {
  outputs_.clear(*stream_);
  RETURN_IF_ERROR(enqueue_logits(pass));
  outputs_.download(*stream_, static_cast<int32_t>(pass.host_logits_rows.size()));
  RETURN_IF_ERROR(stream_->synchronize());
  return read_logits(pass, index, result_);
}

// Replays run the launches of the pass that was captured: one group, and no round trip.
bool CudaExecutor::can_replay(const Pass& pass, int32_t pad_rows) const {
  return options_.use_graphs && pad_rows > 0 && pass.groups.size() == 1 &&
         pass.dense_groups.size() <= 1 && (tier_ == nullptr || tier_->is_capturable());
}

base::Result<void> CudaExecutor::launch(const Pass& pass, int32_t pad_rows,
                                        core::StepResult* result) {
  if (!can_replay(pass, pad_rows)) return enqueue(pass);
  if (edits_moved_ != samples_.moved()) {
    graphs_.forget();
    edits_moved_ = samples_.moved();
  }
  const GraphKey key{pad_rows, pass.selects_max > 0, pass.dense_selects_max > 0,
                     pass.seals_max > 0};
  ASSIGN_OR_RETURN(const bool replayed, graphs_.run(*stream_, key, [&] { return enqueue(pass); }));
  if (replayed) ++result->kv.steps_replayed;
  return {};
}

// Of a decode step it leaves nothing on the host but the stream's work (and plans of products,
// which the first such step makes): it may run into a capture that fails, and then again.
base::Result<void> CudaExecutor::enqueue(const Pass& pass) {
  const int32_t num_layers = decoder_->config().num_layers;
  outputs_.clear(*stream_);
  attention_->begin_pass(*stream_);
  RETURN_IF_ERROR(decoder_->forward({.tokens = pass.rows.tokens,
                                     .num_rows = pass.num_rows,
                                     .attention = attention_.get(),
                                     .layer_begin = 0,
                                     .layer_end = num_layers,
                                     .fill_random = fills(pass)}));
  attention_->end_pass(*stream_, 0, num_layers);
  return enqueue_logits(pass);
}

base::Result<void> CudaExecutor::enqueue_logits(const Pass& pass) {
  const int32_t rows_max = options_.kv.logits_rows_max();
  for (int32_t begin = 0; begin < pass.logits_max; begin += rows_max) {
    const int32_t count = std::min(rows_max, pass.logits_max - begin);
    const int32_t* const rows = pass.logits_rows == nullptr ? nullptr : pass.logits_rows + begin;
    CHECK(rows != nullptr || begin == 0);
    RETURN_IF_ERROR(decoder_->logits(rows, count, logits_.as<float>()));
    ops::cuda::sample(stream_->handle(), {.logits = logits_.as<float>(),
                                          .vocab_size = decoder_->config().vocab_size,
                                          .rows = samples_.rows() + begin,
                                          .num_rows = count,
                                          .edits = samples_.edits(),
                                          .counts = samples_.counts(),
                                          .allowed = samples_.allowed(),
                                          .results = outputs_.results() + begin,
                                          .workspace = sample_workspace_.data()});
  }
  return {};
}

base::Result<void> CudaExecutor::read_selections(const Pass& pass, core::StepResult* result) const {
  core::KvCounters& kv = result->kv;
  kv.pages_sealed += int64_t{pass.num_sealed} * kv_.selecting().num_columns();
  if (is_quantised(options_.kv)) {
    kv.pages_quantised +=
        int64_t{pass.num_sealed} * options_.kv.num_layers * options_.kv.num_kv_heads;
  }
  if (pass.selects_max == 0) return {};
  const StepCounters counters = outputs_.host_counters();
  if (*counters.error != ops::cuda::kSelectOk) {
    return base::error(base::Code::kInternal, "selection on the GPU: {}",
                       describe(*counters.error));
  }
  kv.load_us += *counters.gather_ns / 1000;
  for (size_t i = 0; i < pass.host_selects.size(); ++i) {
    const ops::cuda::SelectRow& row = pass.host_selects[i];
    core::SegmentResult& r = result->segments[static_cast<size_t>(pass.select_segments[i])];
    const int64_t gathered = int64_t{counters.missed[i]} + counters.dense_missed[i];
    kv.pages_loaded += gathered;
    kv.bytes_loaded += gathered * options_.kv.page.page_bytes();
    kv.bytes_gathered += gathered * options_.kv.page.page_bytes();
    kv.pages_evicted += counters.evicted[i];
    kv.pages_scratch += counters.scratch[i];
    // Within its budget the row took all its pages: it chose none and missed none.
    if (row.position / options_.kv.page.page_tokens < row.num_selected) continue;
    kv.pages_selected += counters.selected[i];
    r.pages_selected += counters.selected[i];
    kv.pages_missed += counters.missed[i];
    r.pages_missed += counters.missed[i];
    count_selections(row, &kv);
  }
  for (size_t i = 0; i < pass.last_segments.size(); ++i) {
    core::SegmentResult& r = result->segments[static_cast<size_t>(pass.last_segments[i])];
    r.working_set_frames = counters.working_set_frames[i];
    r.working_set_pages = counters.working_set_pages[i];
  }
  return {};
}

// As the kernels did: which layers selected anew follows from the row alone.
void CudaExecutor::count_selections(const ops::cuda::SelectRow& row, core::KvCounters* kv) const {
  const int32_t num_pages = row.position / options_.kv.page.page_tokens;
  for (int32_t layer = 0; layer < options_.kv.num_layers; ++layer) {
    const int64_t heads = kv_.num_selecting(layer);
    if (row.fresh != 0 || (row.position + layer) % options_.kv.sparse.reuse_interval == 0) {
      kv->selections += heads;
      kv->pages_scored += heads * num_pages;
    } else {
      kv->selections_reused += heads;
    }
  }
}

// Segments of the pass are those of the plan from number `first_segment` on.
base::Result<void> CudaExecutor::read_logits(const Pass& pass, size_t first_segment,
                                             core::StepResult* result) const {
  for (size_t i = 0; i < pass.host_logits_rows.size(); ++i) {
    const LogitsRow& row = pass.host_logits_rows[i];
    const core::Segment& s = pass.planned[static_cast<size_t>(row.segment)];
    core::SegmentResult& r = result->segments[first_segment + static_cast<size_t>(row.segment)];
    const ops::cuda::SampleResult& sampled = outputs_.host_results()[i];
    if (sampled.token < 0 || sampled.token >= decoder_->config().vocab_size) {
      return base::error(base::Code::kInternal, "the GPU drew token {}", sampled.token);
    }
    if (SampleInputs::draws(s, row)) {
      r.token = sampled.token;
      if (r.has_logprobs) read_logprobs(sampled, &r.logprobs);
    } else if (SampleInputs::scores(s, row)) {
      const auto scored = static_cast<size_t>(row.position - s.logits_begin);
      if (scored < r.prompt.size()) read_logprobs(sampled, &r.prompt[scored]);
    }
  }
  return {};
}

}  // namespace exec::cuda
