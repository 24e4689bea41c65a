#include "exec/cuda/cuda_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "exec/cuda/list_buffer.h"
#include "store/cuda/transfer_memory.h"

namespace exec::cuda {
namespace {

core::KvColumns columns_of_homes(const KvOptions& kv, const CudaTierOptions& options) {
  return options.home_streaming_heads ? core::KvColumns::all(kv.num_layers, kv.num_kv_heads)
                                      : kv.block_columns();
}

int32_t pages_of(int32_t tokens, int32_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

bool needs_the_host(core::LoadMethod method) {
  return method == core::LoadMethod::kMemcpy || method == core::LoadMethod::kBatched ||
         method == core::LoadMethod::kStaged;
}

}  // namespace

base::Result<std::unique_ptr<CudaTier>> CudaTier::create(const device::cuda::GpuInfo& gpu,
                                                         const KvOptions& kv_options,
                                                         const CudaTierOptions& options,
                                                         const CudaTierParts& parts) {
  CHECK(options.granularity == core::SaveGranularity::kPages || !kv_options.page.is_quantised(),
        "rows of quantised KV");
  std::unique_ptr<CudaTier> made(new CudaTier(kv_options, options, parts));
  RETURN_IF_ERROR(made->allocate(gpu));
  return made;
}

int64_t CudaTier::transfer_bytes(const KvOptions& kv_options, const CudaTierOptions& options) {
  int64_t rows = 0;
  if (options.granularity == core::SaveGranularity::kStep) {  // as row_shape() has them
    const int64_t columns =
        kv_options.block_columns().num_columns() +
        (options.home_streaming_heads ? kv_options.ring_columns().num_columns() : 0);
    rows = kv_options.max_num_seqs * 2 * columns *
           core::row_bytes(kv_options.page.type, kv_options.page.head_dim);
  }
  const store::cuda::TransferOptions& transfers = options.transfers;
  return store::cuda::transfer_bytes(transfers.load, transfers.save, transfers.staging_bytes, rows);
}

CudaTier::CudaTier(const KvOptions& kv_options, const CudaTierOptions& options,
                   const CudaTierParts& parts)
    : kv_options_(kv_options),
      options_(options),
      parts_(parts),
      tables_(*parts.tables),
      ring_(kv_options.ring()),
      home_columns_(columns_of_homes(kv_options, options)),
      ledger_(*this, kv_options.max_num_seqs, kv_options.pages_max(),
              2 * kv_options.num_layers + 8 + kv_options.page.page_tokens),
      rows_(kv_options.max_num_seqs, kv_options.page.page_tokens) {
  const int32_t layers = kv_options_.num_layers, heads = kv_options_.num_kv_heads;
  const core::KvColumns& frames = parts_.kv->columns();
  const core::KvColumns& rings = parts_.kv->ring_columns();
  frame_runs_ = column_runs(frames, home_columns_, heads, 0, layers);
  ring_runs_ = column_runs(rings, home_columns_, heads, 0, layers);
  for (int32_t layer = 0; layer < layers; ++layer) {
    frame_runs_by_layer_.push_back(column_runs(frames, home_columns_, heads, layer, layer + 1));
    ring_runs_by_layer_.push_back(column_runs(rings, home_columns_, heads, layer, layer + 1));
  }
  const int32_t layer_columns = frames.layer_columns_max();
  scratch_pages_max_ = layer_columns == 0 ? 0 : options_.scratch_frames / layer_columns;
  if (frames.num_columns() > 0) {
    const int64_t buffer = int64_t{kv_options_.pages_max()} * layer_columns;
    buffer_rows_max_ =
        static_cast<int32_t>(2 * ((buffer + frames.num_columns() - 1) / frames.num_columns()));
  }
  const auto slots = static_cast<size_t>(kv_options_.max_num_seqs);
  prefill_saves_.resize(slots);
  errors_.reserve(slots);
  row_saves_.reserve(slots);
  row_segments_.reserve(slots);
  runs_.reserve((frame_runs_.size() + ring_runs_.size()) *
                (slots + static_cast<size_t>(kv_options_.rows_max / kv_options_.page.page_tokens)));
}

base::Result<void> CudaTier::allocate(const device::cuda::GpuInfo& gpu) {
  const int64_t page_bytes = kv_options_.page.page_bytes();
  store::cuda::PinnedPoolOptions homes = options_.homes;
  homes.home_bytes = home_columns_.num_columns() * page_bytes;
  homes.num_homes = options_.num_homes;
  ASSIGN_OR_RETURN(homes_, store::cuda::PinnedPool::create(gpu, homes));
  store::cuda::TransferOptions transfers = options_.transfers;
  transfers.page_bytes = page_bytes;
  if (options_.granularity == core::SaveGranularity::kStep) transfers.rows = row_shape();
  ASSIGN_OR_RETURN(transfers_, store::cuda::Transfers::create(gpu, transfers));
  is_capturable_ = !needs_the_host(transfers_->load_method());
  ASSIGN_OR_RETURN(ready_, device::cuda::Event::create());

  std::vector<int32_t> columns;
  for (int32_t layer = 0; layer < kv_options_.num_layers; ++layer) {
    for (int32_t head = 0; head < kv_options_.num_kv_heads; ++head) {
      columns.push_back(home_columns_.column(layer, head));
    }
  }
  const auto bytes = static_cast<int64_t>(columns.size() * sizeof(int32_t));
  ASSIGN_OR_RETURN(device_columns_, device::cuda::Buffer::allocate(bytes, "columns of homes"));
  const int64_t table_bytes = int64_t{kv_options_.num_kv_heads} * kv_options_.pages_max() * 4;
  ASSIGN_OR_RETURN(buffer_table_,
                   device::cuda::Buffer::allocate(table_bytes, "table of a layer buffer"));
  ASSIGN_OR_RETURN(buffer_rows_, device::cuda::PinnedBuffer::allocate(
                                     std::max<int64_t>(4, int64_t{kv_options_.max_num_seqs} *
                                                              buffer_rows_max_ * 4),
                                     "rows of layer buffers"));
  const int64_t planned = kv_bytes(kv_options_).tier_tables;
  CHECK(this->bytes() == planned, "{} bytes of tables, {} planned", this->bytes(), planned);
  device::cuda::Stream& stream = *parts_.stream;
  stream.fill(buffer_table_.data(), 0, table_bytes);
  stream.copy(device_columns_.data(), columns.data(), bytes);
  return stream.synchronize();  // the copy reads a vector that ends here
}

store::cuda::RowShape CudaTier::row_shape() const {
  const core::PageShape& page = kv_options_.page;
  store::cuda::RowShape shape{.row_bytes = core::row_bytes(page.type, page.head_dim),
                              .rows_max = kv_options_.max_num_seqs};
  const auto add = [&](const std::vector<ColumnRun>& runs, int32_t* num_columns) {
    for (const ColumnRun& run : runs) {
      CHECK(run.device == *num_columns, "columns without homes before {}", run.device);
      for (int32_t i = 0; i < run.count; ++i) shape.home_columns.push_back(run.home + i);
      *num_columns += run.count;
    }
  };
  add(frame_runs_, &shape.frame_columns);
  add(ring_runs_, &shape.ring_columns);
  return shape;
}

SaveQueue::State CudaTier::state(SaveTicket ticket) {
  if (transfers_->is_committed(ticket)) return State::kCommitted;
  return std::ranges::find(failed_, ticket) == failed_.end() ? State::kPending : State::kFailed;
}

base::Result<void> CudaTier::begin_step(const core::StepPlan& plan,
                                        const core::TransferPlan& transfers) {
  CHECK(transfers.copies.empty(), "blocks are copied without a host tier only");
  plan_ = &plan;
  counters_ = {};
  errors_.resize(plan.segments.size());
  for (std::string& error : errors_) error.clear();
  transfers_->take_failures(&failed_);
  ledger_.poll();
  for (const core::FrameCut& c : transfers.cuts) cut(c);
  RETURN_IF_ERROR(wait_for_homes(homes_wanted(plan)));
  for (const core::Segment& segment : plan.segments) enter(segment);
  load_shared(transfers.loads);
  for (const core::Segment& segment : plan.segments) begin_pages(segment);
  parts_.memory->flush();
  return {};
}

// Homes that the step's rows fill, counted from the first of all.
int64_t CudaTier::homes_wanted(const core::StepPlan& plan) const {
  int64_t wanted = 0;
  for (const core::Segment& s : plan.segments) {
    for (size_t page = static_cast<size_t>(s.token_begin / kv_options_.page.page_tokens);
         page < s.blocks.size(); ++page) {
      wanted = std::max<int64_t>(wanted, index(s.blocks[page]) + 1);
    }
  }
  return wanted;
}

// For plans that do not keep to ready_homes().
base::Result<void> CudaTier::wait_for_homes(int64_t wanted) {
  if (wanted <= homes_->num_homes_ready()) return {};
  const int64_t ready = homes_->wait_until_ready(wanted);
  if (wanted <= ready) return {};
  return base::error(base::Code::kTooLarge, "home {} of a plan is not there: {} could be pinned",
                     wanted - 1, ready);
}

void CudaTier::cut(const core::FrameCut& cut) {
  if (!tables_.holds(cut.slot) || tables_.sequence(cut.slot) != cut.seq) return;
  ledger_.wait(cut.slot);
  if (cut.keep == 0) {
    tables_.forget(cut.slot);
    return;
  }
  counters_.pages_evicted +=
      int64_t{tables_.cut(cut, ledger_.saved_pages(cut.slot))} * parts_.kv->columns().num_columns();
}

void CudaTier::enter(const core::Segment& segment) {
  const int32_t slot = segment.slot;
  const bool is_new = !tables_.holds(slot);
  if (is_new) {
    const int32_t cached_pages = segment.token_begin / kv_options_.page.page_tokens;
    // Others may have sealed them in the step before.
    ledger_.settle(segment.blocks.first(static_cast<size_t>(cached_pages)));
    ledger_.begin(slot, cached_pages);
    rows_.begin(slot);
    prefill_saves_[static_cast<size_t>(slot)] = {};
  } else if (tables_.is_resident(slot) && !segment.resident) {
    ledger_.wait(slot);
  }
  tables_.enter(segment, ledger_.saved_pages(slot));
  if (is_new && segment.token_begin > 0 && kv_options_.rings) restore_ring(segment);
}

std::byte* CudaTier::ring_page(int32_t slot, int32_t page, int32_t ring_column) const {
  const ops::cuda::RingPool& rings = parts_.kv->rings();
  const int64_t at = int64_t{slot} * ring_.frames() + ring_.frame_of(page);
  return rings.base + (at * rings.num_columns + ring_column) * kv_options_.page.page_bytes();
}

// What streaming heads see of a cached prefix: its sink and its last pages.
void CudaTier::restore_ring(const core::Segment& segment) {
  CHECK(options_.home_streaming_heads, "streaming heads have no homes to come back from");
  const int32_t pages = segment.token_begin / kv_options_.page.page_tokens;
  const int64_t page_bytes = kv_options_.page.page_bytes();
  runs_.clear();
  int64_t loaded = 0;
  for (int32_t page = 0; page < pages; ++page) {
    if (page >= ring_.sink_pages && page < pages - ring_.ring_pages) continue;
    for (const ColumnRun& run : ring_runs_) {
      runs_.push_back({.to = ring_page(segment.slot, page, run.device),
                       .from = home(segment.blocks[static_cast<size_t>(page)], run.home),
                       .bytes = run.count * page_bytes});
      loaded += run.count;
    }
  }
  std::string why;
  if (!load(loaded, &why)) fail(number(segment), why);
}

void CudaTier::load_shared(std::span<const core::BlockMove> loads) {
  const int64_t page_bytes = kv_options_.page.page_bytes();
  const int32_t num_columns = parts_.kv->columns().num_columns();
  const auto load_moves = [&](std::span<const core::BlockMove> moves, std::string* why) {
    runs_.clear();
    for (const core::BlockMove& move : moves) {
      for (const ColumnRun& run : frame_runs_) {
        runs_.push_back({.to = parts_.kv->page(index(move.frame), run.device),
                         .from = home(move.block, run.home),
                         .bytes = run.count * page_bytes});
      }
    }
    return load(std::ssize(moves) * num_columns, why);
  };
  std::string why;
  if (loads.empty() || load_moves(loads, &why)) return;
  // Again row by row, to know which.
  for (const core::BlockMove& move : loads) {
    if (load_moves({&move, 1}, &why)) continue;
    for (size_t i = 0; i < plan_->segments.size(); ++i) {
      const auto& shared = plan_->segments[i].shared;
      if (std::ranges::find(shared, move.frame, &core::SharedFrame::frame) == shared.end())
        continue;
      fail(i, why);
    }
  }
}

// Of runs_.
bool CudaTier::load(int64_t pages, std::string* why) {
  if (runs_.empty()) return true;
  const base::Result<void> loaded = transfers_->load(*parts_.stream, runs_);
  if (!loaded.ok()) {
    *why = loaded.error().message;
    return false;
  }
  counters_.pages_loaded += pages;
  counters_.bytes_loaded += pages * kv_options_.page.page_bytes();
  return true;
}

// Of runs_, when what was enqueued so far is done.
SaveTicket CudaTier::save(int64_t pages) {
  if (runs_.empty()) return 0;
  DCHECK(pages > 0);
  parts_.stream->record(ready_);
  return transfers_->save(runs_, ready_);
}

// Frames for the pages that the segment's rows are written to, and the ring's as well: pages that
// would be overwritten are at home first.
void CudaTier::begin_pages(const core::Segment& segment) {
  const int32_t slot = segment.slot;
  const int32_t page_end = pages_of(segment.token_end, kv_options_.page.page_tokens);
  if (kv_options_.rings && options_.home_streaming_heads && segment.activations.empty()) {
    ledger_.wait_for(slot, page_end - ring_.ring_pages);
  }
  if (!segment.layer_buffers.empty()) return;
  const int32_t needed = tables_.saved_pages_needed(slot, page_end);
  if (ledger_.saved_pages(slot) < needed) ledger_.wait_for(slot, needed);
  CHECK(ledger_.saved_pages(slot) >= needed, "sequence {}: pages below {} are not at home",
        core::number(segment.seq), needed);
  counters_.pages_evicted +=
      int64_t{tables_.begin_pages(slot, page_end, ledger_.saved_pages(slot))} *
      parts_.kv->columns().num_columns();
  check_scratch(segment);
}

void CudaTier::check_scratch(const core::Segment& segment) {
  if (tables_.is_resident(segment.slot)) return;
  if (segment.policy.kind != core::AttentionPolicy::Kind::kSparse) {
    return fail(number(segment), "attention to all pages of a sequence that is not on the device");
  }
  const int32_t wanted = scratch_pages(segment, kv_options_.sparse.dense_layers > 0);
  if (wanted <= scratch_pages_max_) return;
  fail(number(segment), fmt::format("{} pages of a step need scratch frames, there are {} a head",
                                    wanted, scratch_pages_max_));
}

// Of the sequence's rows those of wide pages stay as they are, the tail among them, and every other
// one can take a selected page, if only by keeping it.
int32_t CudaTier::scratch_pages(const core::Segment& segment, bool of_all) const {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int32_t selected = segment.policy.budget_tokens / page_tokens;
  int32_t listed = pages_of(segment.token_end, page_tokens);
  if (!of_all) {
    listed = std::min(listed, selected + kv_options_.listed_max() - kv_options_.selected_max());
  }
  return std::clamp(listed - 1 - tables_.num_cached_rows(segment.slot), 0, listed);
}

void CudaTier::place(const core::Segment& segment, ops::cuda::PageTable* table) {
  if (segment.layer_buffers.empty()) return;
  table->frames = buffer_table_.as<int32_t>();
  table->head_stride = kv_options_.pages_max();
}

void CudaTier::place(const core::Segment& segment, ops::cuda::SelectRow* row) {
  row->saved_pages = ledger_.saved_pages(segment.slot);
  row->num_frames = tables_.num_cached_rows(segment.slot);
  row->frames_begin = 0;
  // What has failed must not fail the others: its row reads whatever stands where its table says.
  const auto is_same = [&](const core::Segment& s) { return s.slot == segment.slot; };
  const auto it = std::ranges::find_if(plan_->segments, is_same);
  if (it != plan_->segments.end() && !errors_[number(*it)].empty()) row->resident = 1;
}

void CudaTier::complete(int32_t layer, ops::cuda::SelectArgs* args) const {
  args->score.state.own_rows = parts_.memory->own_rows();
  args->score.state.blocks = parts_.memory->blocks();
  args->home_columns = device_columns_.as<int32_t>() + int64_t{layer} * kv_options_.num_kv_heads;
  args->num_home_columns = home_columns_.num_columns();
}

base::Result<void> CudaTier::gather(device::cuda::Stream& stream, const ops::cuda::SelectArgs& args,
                                    int32_t num_rows, store::cuda::GatherProgress* progress,
                                    int64_t* ns) {
  return transfers_->gather(stream, {.homes = homes_->home(0),
                                     .frames = parts_.kv->pool().base,
                                     .page_bytes = kv_options_.page.page_bytes(),
                                     .miss_homes = args.miss_homes,
                                     .miss_frames = args.miss_frames,
                                     .num_misses = args.num_misses,
                                     .num_places = num_rows * kv_options_.num_kv_heads,
                                     .list_stride = args.list_stride,
                                     .progress = progress,
                                     .gather_ns = ns,
                                     .arrived_bytes = args.arrivals,
                                     .miss_entries = args.miss_entries});
}

void CudaTier::save_step() {
  if (options_.granularity == core::SaveGranularity::kStep) save_rows();
  for (const core::Segment& segment : plan_->segments) {
    if (segment.activations.empty()) save_sealed(segment);
  }
}

void CudaTier::end_step(core::StepResult* result) {
  for (size_t i = 0; i < plan_->segments.size(); ++i) result->segments[i].error = error(i);
  ledger_.take_lost(&result->lost);
  const store::cuda::TransferCounters moved = transfers_->counters();
  core::KvCounters& kv = result->kv;
  kv.pages_evicted += counters_.pages_evicted;
  kv.pages_loaded += counters_.pages_loaded;
  kv.bytes_loaded += counters_.bytes_loaded;
  kv.pages_saved += moved.pages_saved - moved_.pages_saved;
  kv.bytes_saved += moved.bytes_saved - moved_.bytes_saved;
  kv.rows_saved += moved.rows_saved - moved_.rows_saved;
  kv.save_us += moved.save_us - moved_.save_us;
  kv.save_waits += moved.save_waits - moved_.save_waits;
  moved_ = moved;
}

// What the step's decode rows wrote, of each sequence one.
void CudaTier::save_rows() {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  row_saves_.clear();
  row_segments_.clear();
  for (const core::Segment& segment : plan_->segments) {
    const int32_t position = segment.token_begin;
    if (segment.kind != core::RowKind::kDecode || segment.token_end != position + 1) continue;
    if (!rows_.take(segment.slot, position)) continue;
    const int32_t page = position / page_tokens, row = tables_.row_of(segment.slot, page);
    CHECK(row >= 0, "sequence {}: page {} has no row", core::number(segment.seq), page);
    row_segments_.push_back(&segment);
    row_saves_.push_back({.frames = frame_runs_.empty() ? nullptr : parts_.kv->page(row, 0),
                          .ring = ring_runs_.empty() ? nullptr : ring_page(segment.slot, page, 0),
                          .home = home(segment.blocks[static_cast<size_t>(page)], 0),
                          .token = position % page_tokens});
  }
  if (row_saves_.empty()) return;
  parts_.stream->record(ready_);
  const SaveTicket ticket = transfers_->save_rows(row_saves_, ready_);
  for (const core::Segment* segment : row_segments_) {
    const int32_t slot = segment->slot, page = segment->token_begin / page_tokens;
    ledger_.add(slot, ticket, segment->blocks.subspan(static_cast<size_t>(page), 1),
                rows_.is_whole(slot, page) ? page + 1 : ledger_.saved_pages(slot));
  }
}

void CudaTier::save_sealed(const core::Segment& segment) {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int64_t page_bytes = kv_options_.page.page_bytes();
  const int32_t begin = segment.token_begin / page_tokens, end = segment.token_end / page_tokens;
  if (begin == end) return;
  if (segment.token_end == segment.token_begin + 1 && rows_.is_whole(segment.slot, begin)) return;
  runs_.clear();
  int64_t saved = 0;
  for (int32_t page = begin; page < end; ++page) {
    const core::BlockId block = segment.blocks[static_cast<size_t>(page)];
    const int32_t row = tables_.row_of(segment.slot, page);
    CHECK(row >= 0, "sequence {}: page {} has no row", core::number(segment.seq), page);
    for (const ColumnRun& run : frame_runs_) {
      runs_.push_back({.to = home(block, run.home),
                       .from = parts_.kv->page(row, run.device),
                       .bytes = run.count * page_bytes});
      saved += run.count;
    }
    for (const ColumnRun& run : ring_runs_) {
      runs_.push_back({.to = home(block, run.home),
                       .from = ring_page(segment.slot, page, run.device),
                       .bytes = run.count * page_bytes});
      saved += run.count;
    }
  }
  ledger_.add(segment.slot, save(saved),
              segment.blocks.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
              end);
}

void CudaTier::fail(size_t segment, const std::string& why) {
  if (errors_[segment].empty()) errors_[segment] = why;
}

const std::string& CudaTier::error(size_t segment) {
  if (ledger_.is_broken(plan_->segments[segment].slot)) {
    fail(segment, "a page of the sequence could not be saved to the host tier");
  }
  return errors_[segment];
}

}  // namespace exec::cuda
