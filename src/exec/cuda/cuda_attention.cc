#include "exec/cuda/cuda_attention.h"

#include <algorithm>

#include "base/check.h"
#include "store/cuda/gather_plan.h"

namespace exec::cuda {

using device::cuda::Buffer;
using device::cuda::Stream;
using store::cuda::GatherProgress;

namespace {

constexpr int64_t kScratchTakenBytes = 8;

// What decode rows alone take.
int64_t decode_bytes(const KvOptions& options, int32_t num_q_heads, int num_sms) {
  return ops::cuda::decode_workspace_bytes(options.decode_rows_max(), num_q_heads,
                                           options.num_kv_heads, options.page.head_dim,
                                           options.context_max, num_sms);
}

}  // namespace

int64_t CudaAttention::workspace_bytes(const KvOptions& options, int32_t num_q_heads, int num_sms) {
  return decode_bytes(options, num_q_heads, num_sms) + int64_t{sizeof(GatherProgress)} +
         kScratchTakenBytes;
}

base::Result<std::unique_ptr<CudaAttention>> CudaAttention::create(
    const device::cuda::GpuInfo& gpu, Stream& stream, const KvOptions& options, int32_t num_q_heads,
    CudaKv& kv, SelectMemory* select, KvTier* tier, const int32_t* rows_table,
    const StepInputs& inputs, StepOutputs& outputs) {
  std::unique_ptr<CudaAttention> made(
      new CudaAttention(gpu, options, num_q_heads, kv, select, tier, rows_table, inputs, outputs));
  RETURN_IF_ERROR(made->allocate(stream));
  return made;
}

base::Result<void> CudaAttention::allocate(Stream& stream) {
  const auto allocate = [&](int64_t bytes, const char* what, Buffer* to) -> base::Result<void> {
    ASSIGN_OR_RETURN(*to, Buffer::allocate(bytes, what));
    stream.fill(to->data(), 0, bytes);
    return {};
  };
  RETURN_IF_ERROR(allocate(decode_bytes(options_, num_q_heads_, gpu_.num_sms),
                           "attention of decode rows", &decode_workspace_));
  if (select_ == nullptr) return {};
  const int64_t places = int64_t{options_.decode_rows_max()} * options_.num_kv_heads;
  const int64_t list_bytes = places * options_.listed_max() * 4;
  RETURN_IF_ERROR(allocate(places * options_.pages_max() * 4, "page scores", &scores_));
  RETURN_IF_ERROR(allocate(list_bytes, "selected frames", &frames_));
  RETURN_IF_ERROR(allocate(places * 4, "selection counts", &num_listed_));
  if (tier_ == nullptr) return {};
  RETURN_IF_ERROR(allocate(list_bytes, "missed pages", &miss_homes_));
  RETURN_IF_ERROR(allocate(list_bytes, "missed pages", &miss_frames_));
  RETURN_IF_ERROR(allocate(places * 4, "missed pages", &num_misses_));
  RETURN_IF_ERROR(allocate(list_bytes, "missed pages", &miss_entries_));
  RETURN_IF_ERROR(allocate(list_bytes, "missed pages", &arrivals_));
  RETURN_IF_ERROR(allocate(sizeof(GatherProgress), "missed pages", &gather_progress_));
  RETURN_IF_ERROR(allocate(kScratchTakenBytes, "missed pages", &scratch_taken_));
  return {};
}

void CudaAttention::begin_pass(Stream& stream) {
  if (inputs_.pass().selects_max > 0) forget_lists(stream);
  if (inputs_.pass().dense_selects_max > 0) dense_->forget(stream);
}

// Rows that select nothing attend to everything: -1 stands for that.
void CudaAttention::forget_lists(Stream& stream) {
  stream.fill(num_listed_.data(), 0xff, num_listed_.size());
  stream.fill(num_misses_.data(), 0, num_misses_.size());
}

base::Result<void> CudaAttention::attend(Stream& stream, const model::cuda::AttendArgs& args) {
  const Pass& pass = inputs_.pass();
  const ops::cuda::KvLayer kv = kv_.layer(args.layer);
  ops::cuda::QkvArgs qkv = args.qkv;
  qkv.kv = kv;
  qkv.rows = pass.rows;
  ops::cuda::rope_and_write(stream.handle(), qkv);
  seal(stream, args.layer, kv);
  if (!args.fill_random) attend_prompts(stream, args, kv);
  if (pass.dense_selects_max > 0 && dense_->lists(args.layer)) {
    for (size_t group = 0; group < pass.dense_groups.size(); ++group) {
      RETURN_IF_ERROR(attend_dense_group(stream, args, kv, group));
    }
    return {};
  }
  for (size_t group = 0; group < pass.groups.size(); ++group) {
    RETURN_IF_ERROR(attend_group(stream, args, kv, group));
  }
  return {};
}

void CudaAttention::seal(Stream& stream, int32_t layer, const ops::cuda::KvLayer& kv) const {
  const Pass& pass = inputs_.pass();
  if (pass.seals_max == 0) return;
  const ops::cuda::SealArgs args{.kv = kv,
                                 .kind = options_.sparse.page_stats,
                                 .stats = kv_.stats(),
                                 .selecting_columns = kv_.selecting_columns(layer),
                                 .tables = pass.rows.tables,
                                 .pages = pass.seals,
                                 .num_pages = pass.num_seals,
                                 .pages_max = pass.seals_max};
  if (options_.page.is_quantised()) ops::cuda::kv_seal(stream.handle(), args);
  if (kv_.num_selecting(layer) > 0) ops::cuda::page_stats(stream.handle(), args);
}

void CudaAttention::attend_prompts(Stream& stream, const model::cuda::AttendArgs& args,
                                   const ops::cuda::KvLayer& kv) const {
  const Pass& pass = inputs_.pass();
  if (pass.host_prefills.empty()) return;
  ops::cuda::prefill_attention(stream.handle(),
                               {.kv = kv,
                                .q = args.qkv.qkv,
                                .q_stride = args.qkv_stride,
                                .num_q_heads = num_q_heads_,
                                .softmax_scale = args.softmax_scale,
                                .tables = pass.rows.tables,
                                .segments = pass.prefills,
                                .host_segments = pass.host_prefills.data(),
                                .num_segments = static_cast<int32_t>(pass.host_prefills.size()),
                                .out = args.out,
                                .out_stride = args.out_stride,
                                .num_sms = gpu_.num_sms});
}

ops::cuda::DecodeArgs CudaAttention::decode_args(const model::cuda::AttendArgs& args,
                                                 const ops::cuda::KvLayer& kv,
                                                 const DecodeGroup& g) const {
  const ops::cuda::StepRows& rows = inputs_.pass().rows;
  const int32_t num_rows = g.row_end - g.row_begin;
  return {.kv = kv,
          .rows = {.num_rows = num_rows,
                   .tokens = rows.tokens + g.row_begin,
                   .positions = rows.positions + g.row_begin,
                   .row_tables = rows.row_tables + g.row_begin,
                   .tables = rows.tables},
          .num_rows = num_rows,
          .q = args.qkv.qkv + g.row_begin * args.qkv_stride,
          .q_stride = args.qkv_stride,
          .num_q_heads = num_q_heads_,
          .softmax_scale = args.softmax_scale,
          .out = args.out + g.row_begin * args.out_stride,
          .out_stride = args.out_stride,
          .workspace = decode_workspace_.data(),
          .context_max = options_.context_max,
          .num_sms = gpu_.num_sms};
}

// Every row over all its pages, those that the device does not hold by way of scratch.
base::Result<void> CudaAttention::attend_dense_group(Stream& stream,
                                                     const model::cuda::AttendArgs& args,
                                                     const ops::cuda::KvLayer& kv, size_t group) {
  const Pass& pass = inputs_.pass();
  const DecodeGroup& g = pass.dense_groups[group];
  ops::cuda::DecodeArgs decode = decode_args(args, kv, g);
  if (g.selects_max > 0) {
    if (pass.dense_groups.size() > 1) dense_->forget(stream);
    ops::cuda::SelectArgs list = select_args(args, g);
    list.score.rows = pass.dense_selects + g.select_begin;
    list.score.num_rows = pass.num_dense_selects + group;
    dense_->fill(args.layer, &list);
    list.missed_pages = outputs_.counters(g.select_begin).dense_missed;
    tier_->complete(args.layer, &list);
    ops::cuda::select_and_resolve(stream.handle(), list);
    RETURN_IF_ERROR(tier_->gather(stream, list, g.row_end - g.row_begin,
                                  gather_progress_.as<GatherProgress>(),
                                  outputs_.counters(g.select_begin).gather_ns));
    dense_->fill(&decode);
  }
  ops::cuda::decode_attention(stream.handle(), decode);
  return {};
}

base::Result<void> CudaAttention::attend_group(Stream& stream, const model::cuda::AttendArgs& args,
                                               const ops::cuda::KvLayer& kv, size_t group) {
  const Pass& pass = inputs_.pass();
  const DecodeGroup& g = pass.groups[group];
  ops::cuda::DecodeArgs decode = decode_args(args, kv, g);
  if (kv_.num_selecting(args.layer) > 0 && g.selects_max > 0) {
    if (pass.groups.size() > 1) forget_lists(stream);
    RETURN_IF_ERROR(select(stream, args, group));
    decode.list = frames_.as<int32_t>();
    decode.num_listed = num_listed_.as<int32_t>();
    decode.list_stride = options_.listed_max();
    if (attends_beside()) {
      decode.arrivals = arrivals_.as<int32_t>();
      decode.gather_begun = &gather_progress_.as<GatherProgress>()->begun;
      decode.num_sms = store::cuda::sms_beside_gather(decode.num_sms, tier_->gather_sms());
    }
  }
  ops::cuda::decode_attention(stream.handle(), decode);
  return {};
}

// What a selection and a list of all pages have in common. `rows` are the caller's.
ops::cuda::SelectArgs CudaAttention::select_args(const model::cuda::AttendArgs& args,
                                                 const DecodeGroup& g) {
  const Pass& pass = inputs_.pass();
  const StepCounters counters = outputs_.counters(g.select_begin);
  return {.score = {.page = options_.page,
                    .q = args.qkv.qkv + g.row_begin * args.qkv_stride,
                    .q_stride = args.qkv_stride,
                    .num_q_heads = num_q_heads_,
                    .num_kv_heads = options_.num_kv_heads,
                    .stats = kv_.stats(),
                    .selecting_columns = kv_.selecting_columns(args.layer),
                    .state = select_->state(),
                    .rows_max = g.selects_max,
                    .layer = args.layer,
                    .reuse_interval = options_.sparse.reuse_interval,
                    .scores = scores_.as<float>(),
                    .num_sms = gpu_.num_sms},
          .sink_pages = options_.sparse.sink_pages,
          .pool = kv_.pool(),
          .columns = kv_.frame_columns(args.layer),
          .tables = pass.rows.tables,
          .row_tables = pass.rows.row_tables + g.row_begin,
          .scratch_begin = kv_.scratch_begin(),
          .scratch_frames = kv_.scratch_frames(),
          .list_stride = options_.listed_max(),
          .frames = frames_.as<int32_t>(),
          .num_listed = num_listed_.as<int32_t>(),
          .miss_homes = miss_homes_.as<int32_t>(),
          .miss_frames = miss_frames_.as<int32_t>(),
          .num_misses = num_misses_.as<int32_t>(),
          .scratch_taken = scratch_taken_.as<int32_t>(),
          .selected_pages = counters.selected,
          .missed_pages = counters.missed,
          .evicted_pages = counters.evicted,
          .scratch_pages = counters.scratch,
          .error = counters.error};
}

// What the group's rows attend to: listed frames, and (with a tier) pages on their way there.
base::Result<void> CudaAttention::select(Stream& stream, const model::cuda::AttendArgs& args,
                                         size_t group) {
  const Pass& pass = inputs_.pass();
  const DecodeGroup& g = pass.groups[group];
  ops::cuda::SelectArgs select = select_args(args, g);
  select.score.rows = pass.selects + g.select_begin;
  select.score.num_rows = pass.num_selects + group;
  // Without a tier block b stands in row b.
  select.score.state.blocks = rows_table_;
  if (forced_ != nullptr && g.select_begin + g.selects_max <= forced_->rows_max()) {
    select.forced_pages = forced_->pages(g.select_begin);
    select.forced_counts = forced_->counts(g.select_begin);
    select.forced_stride = forced_->stride();
  }
  if (tier_ != nullptr) tier_->complete(args.layer, &select);
  if (attends_beside()) {
    select.miss_entries = miss_entries_.as<int32_t>();
    select.arrivals = arrivals_.as<int32_t>();
  }
  ops::cuda::score_and_select(stream.handle(), select);
  if (tier_ == nullptr) return {};
  return tier_->gather(stream, select, g.row_end - g.row_begin,
                       gather_progress_.as<GatherProgress>(),
                       outputs_.counters(g.select_begin).gather_ns);
}

// Pages that the last segment rows went on in are the slots' own from now on; and what the pass
// selected is counted.
void CudaAttention::end_pass(Stream& stream, int32_t layer_begin, int32_t layer_end) {
  const Pass& pass = inputs_.pass();
  for (const OpenCarry& carry : pass.carries) {
    kv_.copy_open(stream, carry.from, carry.to, layer_begin, layer_end);
  }
  if (pass.last_selects_max == 0) return;
  const StepCounters counters = outputs_.counters(0);
  ops::cuda::working_set(stream.handle(), {.state = select_->state(),
                                           .page_tokens = options_.page.page_tokens,
                                           .rows = pass.last_selects,
                                           .num_rows = pass.num_last_selects,
                                           .rows_max = pass.last_selects_max,
                                           .window = options_.working_set_window,
                                           .frames = counters.working_set_frames,
                                           .pages = counters.working_set_pages});
}

}  // namespace exec::cuda
