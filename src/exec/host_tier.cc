#include "exec/host_tier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace exec {
namespace {

core::KvColumns columns_of_homes(const KvOptions& kv, const HostTierOptions& options) {
  return options.home_streaming_heads ? core::KvColumns::all(kv.num_layers, kv.num_kv_heads)
                                      : kv.block_columns();
}

ResidencyShape residency_shape(const KvOptions& kv, int32_t num_slots) {
  return {.num_slots = num_slots,
          .num_columns = kv.block_columns().num_columns(),
          .pages_max = kv.pages_max(),
          .rows_max = kv.pages_max(),
          .page_tokens = kv.page.page_tokens,
          .num_threads = kv.num_threads};
}

int64_t private_table_bytes(const KvOptions& kv) {
  return int64_t{kv.num_kv_heads} * kv.pages_max() * 4;
}

int32_t pages_of(int32_t tokens, int32_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

}  // namespace

int32_t HostTier::pool_rows(const KvOptions& kv, const HostTierOptions& options) {
  return options.num_frames +
         DeviceFrames::scratch_rows(kv.block_columns().num_columns(), options.scratch_frames);
}

int64_t HostTier::slot_bytes(const KvOptions& kv) {
  return residency_shape(kv, 1).bytes() + private_table_bytes(kv);
}

base::Result<std::unique_ptr<HostTier>> HostTier::create(device::Stream& stream,
                                                         const KvOptions& kv_options,
                                                         const HostTierOptions& options,
                                                         DeviceKv& kv,
                                                         const SelectionState& selections) {
  std::unique_ptr<HostTier> made(new HostTier(stream, kv_options, options, kv));
  const int64_t page_bytes = kv_options.page.page_bytes();
  ASSIGN_OR_RETURN(made->homes_,
                   store::PagePool::create({.num_columns = made->home_columns_.num_columns(),
                                            .num_rows = options.num_homes,
                                            .item_bytes = page_bytes},
                                           "homes"));
  const int32_t selecting_begin =
      kv.columns().layer_begin(std::min(kv_options.sparse.dense_layers, kv_options.num_layers));
  ASSIGN_OR_RETURN(made->residency_,
                   Residency::create(residency_shape(kv_options, kv_options.max_num_seqs),
                                     made->frames_, selections, selecting_begin));
  ASSIGN_OR_RETURN(
      made->private_tables_,
      device::Buffer::allocate(kv_options.max_num_seqs * private_table_bytes(kv_options),
                               "tables of frames"));
  store::TransferOptions transfers = options.transfers;
  transfers.page_bytes = page_bytes;
  ASSIGN_OR_RETURN(made->transfers_, store::TransferEngine::create(stream, transfers));
  made->saver_ = std::make_unique<PageSaver>(*made->transfers_, kv_options.max_num_seqs,
                                             kv_options.pages_max(), 2 * kv_options.num_layers + 8);
  made->fetcher_ = std::make_unique<PageFetcher>(
      PageFetcherParts{.stream = &stream,
                       .frames = &made->frames_,
                       .homes = &made->homes_,
                       .columns = kv_options.block_columns(),
                       .home_columns = made->home_columns_,
                       .num_layers = kv_options.num_layers,
                       .num_kv_heads = kv_options.num_kv_heads,
                       .transfers = made->transfers_.get(),
                       .residency = &made->residency_,
                       .saver = made->saver_.get()},
      selecting_rows_max(kv_options) * kv_options.num_kv_heads * kv_options.listed_max());
  return made;
}

HostTier::HostTier(device::Stream& stream, const KvOptions& kv_options,
                   const HostTierOptions& options, DeviceKv& kv)
    : stream_(stream),
      kv_options_(kv_options),
      options_(options),
      kv_(kv),
      frames_(kv.frames(), options.num_frames),
      home_columns_(columns_of_homes(kv_options, options)) {
  errors_.reserve(static_cast<size_t>(kv_options_.max_num_seqs));
  copies_.reserve(static_cast<size_t>(home_columns_.num_columns()) *
                  static_cast<size_t>(kv_options_.rows_max / kv_options_.page.page_tokens + 1));
}

void HostTier::begin_step(const core::StepPlan& plan, const core::TransferPlan& transfers) {
  CHECK(transfers.copies.empty(), "blocks are copied without a host tier only");
  plan_ = &plan;
  counters_ = {};
  errors_.resize(plan.segments.size());
  for (std::string& error : errors_) error.clear();
  fetcher_->begin_step(plan.segments.size());
  saver_->poll();
  for (const core::FrameCut& c : transfers.cuts) cut(c);
  for (const core::Segment& segment : plan.segments) enter(segment);
  load_shared(transfers.loads);
  for (const core::Segment& segment : plan.segments) begin_pages(segment);
}

void HostTier::cut(const core::FrameCut& cut) {
  if (!residency_.holds(cut.slot) || residency_.sequence(cut.slot) != cut.seq) return;
  saver_->wait(cut.slot);
  if (cut.keep == 0) {
    residency_.forget(cut.slot);
  } else {
    counters_.pages_evicted += residency_.cut(stream_, cut, saver_->saved_pages(cut.slot));
  }
}

void HostTier::enter(const core::Segment& segment) {
  const bool is_new = !residency_.holds(segment.slot);
  residency_.enter(stream_, segment);
  if (!is_new) return;
  saver_->begin(segment.slot, segment.token_begin / kv_options_.page.page_tokens);
  if (segment.token_begin > 0 && kv_options_.rings) restore_ring(segment);
}

// What streaming heads see of a cached prefix: its sink and its last pages.
void HostTier::restore_ring(const core::Segment& segment) {
  CHECK(options_.home_streaming_heads, "streaming heads have no homes to come back from");
  const core::RingShape& ring = kv_.ring();
  const int32_t pages = segment.token_begin / kv_options_.page.page_tokens;
  copies_.clear();
  for (int32_t layer = 0; layer < kv_options_.num_layers; ++layer) {
    for (int32_t head = 0; head < kv_options_.num_kv_heads; ++head) {
      if (kv_.ring_columns().column(layer, head) < 0) continue;
      for (int32_t page = 0; page < pages; ++page) {
        if (page >= ring.sink_pages && page < pages - ring.ring_pages) continue;
        copies_.push_back({.from = home(segment, layer, head, page),
                           .to = ring_page(segment.slot, layer, head, page)});
      }
    }
  }
  const auto loaded = transfers_->load(copies_);
  if (!loaded.ok()) {
    fail(static_cast<size_t>(&segment - plan_->segments.data()), loaded.error().message);
  }
}

void HostTier::load_shared(std::span<const core::BlockMove> loads) {
  const auto load = [&](std::span<const core::BlockMove> moves) {
    copies_.clear();
    for (int32_t layer = 0; layer < kv_options_.num_layers; ++layer) {
      for (int32_t head = 0; head < kv_options_.num_kv_heads; ++head) {
        const int32_t column = kv_.columns().column(layer, head);
        if (column < 0) continue;
        for (const core::BlockMove& move : moves) {
          copies_.push_back(
              {.from = homes_.item(home_columns_.column(layer, head), core::index(move.block)),
               .to = frames_.page(frames_.frame(column, move.frame))});
        }
      }
    }
    return transfers_->load(copies_);
  };
  if (loads.empty() || load(loads).ok()) return;
  // Again row by row, to know which.
  for (const core::BlockMove& move : loads) {
    const auto loaded = load({&move, 1});
    if (loaded.ok()) continue;
    for (size_t i = 0; i < plan_->segments.size(); ++i) {
      const auto& shared = plan_->segments[i].shared;
      if (std::ranges::find(shared, move.frame, &core::SharedFrame::frame) == shared.end())
        continue;
      fail(i, loaded.error().message);
    }
  }
}

// Frames for the pages that the segment's rows are written to, and the ring's as well: pages that
// would be overwritten are at home first.
void HostTier::begin_pages(const core::Segment& segment) {
  const int32_t slot = segment.slot;
  const int32_t page_end = pages_of(segment.token_end, kv_options_.page.page_tokens);
  if (kv_options_.rings && options_.home_streaming_heads && segment.activations.empty()) {
    saver_->wait_for(slot, page_end - kv_.ring().ring_pages);
  }
  if (!segment.layer_buffers.empty()) return;
  const int32_t num_rows = static_cast<int32_t>(residency_.rows(slot).size());
  if (residency_.rows_short(slot, page_end, saver_->saved_pages(slot)) > 0) {
    saver_->wait_for(slot, page_end - num_rows);
  }
  const int32_t rows_short = residency_.rows_short(slot, page_end, saver_->saved_pages(slot));
  CHECK(rows_short == 0, "sequence {}: {} rows are {} short of pages up to {}, {} of them saved",
        number(segment.seq), num_rows, rows_short, page_end, saver_->saved_pages(slot));
  counters_.pages_evicted +=
      residency_.begin_pages(stream_, slot, page_end, saver_->saved_pages(slot));
}

void HostTier::end_step(core::StepResult* result) {
  for (size_t i = 0; i < plan_->segments.size(); ++i) {
    const core::Segment& segment = plan_->segments[i];
    if (segment.activations.empty()) save_sealed(segment);
    result->segments[i].pages_missed = fetcher_->pages_missed(i);
    result->segments[i].error = error(i);
  }
  saver_->take_lost(&result->lost);
  const store::TransferCounters moved = transfers_->counters();
  core::KvCounters& kv = result->kv;
  kv.pages_missed += fetcher_->counters().pages_missed;
  kv.pages_scratch += fetcher_->counters().pages_scratch;
  kv.pages_evicted += fetcher_->counters().pages_evicted + counters_.pages_evicted;
  kv.pages_loaded += moved.pages_loaded - moved_.pages_loaded;
  kv.bytes_loaded += moved.bytes_loaded - moved_.bytes_loaded;
  kv.load_us += moved.load_us - moved_.load_us;
  kv.bytes_gathered += moved.bytes_loaded - moved_.bytes_loaded;
  kv.pages_saved += moved.pages_saved - moved_.pages_saved;
  kv.bytes_saved += moved.bytes_saved - moved_.bytes_saved;
  kv.save_us += moved.save_us - moved_.save_us;
  moved_ = moved;
}

void HostTier::save_sealed(const core::Segment& segment) {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int32_t begin = segment.token_begin / page_tokens, end = segment.token_end / page_tokens;
  if (begin == end) return;
  copies_.clear();
  for (int32_t layer = 0; layer < kv_options_.num_layers; ++layer) {
    for (int32_t head = 0; head < kv_options_.num_kv_heads; ++head) {
      if (home_columns_.column(layer, head) < 0) continue;
      const int32_t column = kv_.columns().column(layer, head);
      for (int32_t page = begin; page < end; ++page) {
        const std::byte* const from =
            column >= 0 ? frames_.page(residency_.frame_of_page(segment.slot, column, page))
                        : ring_page(segment.slot, layer, head, page);
        copies_.push_back({.from = from, .to = home(segment, layer, head, page)});
      }
    }
  }
  const auto blocks =
      segment.blocks.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  saver_->save(segment.slot, copies_, blocks, end);
}

const int32_t* HostTier::frames_table(int32_t slot) const {
  return is_resident(slot) ? residency_.rows_of_pages(slot) : private_table(slot);
}

int64_t HostTier::frames_head_stride(int32_t slot) const {
  return is_resident(slot) ? 0 : kv_options_.pages_max();
}

void HostTier::list_own_pages(const core::Segment& segment, int32_t layer) {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int32_t end = pages_of(segment.token_end, page_tokens);
  int32_t* table = private_table(segment.slot);
  for (int32_t head = 0; head < kv_options_.num_kv_heads;
       ++head, table += kv_options_.pages_max()) {
    const int32_t column = kv_.columns().column(layer, head);
    if (column < 0) continue;
    for (int32_t page = segment.token_begin / page_tokens; page < end; ++page) {
      table[page] = residency_.frame_of_page(segment.slot, column, page) - frames_.frame(column, 0);
    }
  }
}

void HostTier::list_buffer_pages(const core::Segment& segment, int32_t layer, int32_t page_end) {
  const core::KvColumns& columns = kv_.columns();
  const int32_t first_column = columns.layer_begin(layer);
  const int32_t layer_columns = columns.layer_begin(layer + 1) - first_column;
  const auto half = segment.layer_buffers.size() / 2;
  const auto buffer = segment.layer_buffers.subspan(layer % 2 == 0 ? 0 : half, half);
  const auto shared = static_cast<int32_t>(segment.shared.size());
  int32_t* table = private_table(segment.slot);
  for (int32_t head = 0; head < kv_options_.num_kv_heads;
       ++head, table += kv_options_.pages_max()) {
    const int32_t column = columns.column(layer, head);
    if (column < 0) continue;
    for (int32_t page = 0; page < page_end; ++page) {
      const int32_t frame =
          page < shared ? frames_.frame(column, segment.shared[static_cast<size_t>(page)].frame)
                        : frames_.buffer(buffer, page * layer_columns + column - first_column);
      table[page] = frame - frames_.frame(column, 0);
    }
  }
}

void HostTier::end_layer_buffers(const core::Segment& segment, int32_t tokens) {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int32_t sealed = tokens / page_tokens;
  residency_.skip_pages(segment.slot, sealed);
  if (tokens % page_tokens == 0) return;
  // Its rows hold nothing, so the tail takes the first one in every column.
  residency_.begin_pages(stream_, segment.slot, sealed + 1, sealed);
  CHECK(frames_.num_columns() == 0 ||
        residency_.frame_of_page(segment.slot, 0, sealed) == frames_.frame(0, segment.frames[0]));
}

std::byte* HostTier::listed_page(int32_t slot, int32_t layer, int32_t head, int32_t page) const {
  const int32_t column = kv_.columns().column(layer, head);
  if (column < 0) return nullptr;
  const int32_t frame = frames_table(slot)[head * frames_head_stride(slot) + page];
  return frames_.page(frames_.frame(column, 0) + frame);
}

std::byte* HostTier::ring_page(int32_t slot, int32_t layer, int32_t head, int32_t page) const {
  const core::RingShape& ring = kv_.ring();
  return kv_.rings().item(kv_.ring_columns().column(layer, head),
                          slot * ring.frames() + ring.frame_of(page));
}

void HostTier::fail(size_t segment, const std::string& why) {
  if (errors_[segment].empty()) errors_[segment] = why;
}

const std::string& HostTier::error(size_t segment) {
  fail(segment, fetcher_->error(segment));
  if (saver_->is_broken(plan_->segments[segment].slot)) {
    fail(segment, "a page of the sequence could not be saved to the host tier");
  }
  return errors_[segment];
}

}  // namespace exec
