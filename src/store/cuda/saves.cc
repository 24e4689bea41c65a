#include "store/cuda/saves.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/sizes.h"
#include "device/cuda/status.h"
#include "store/cuda/row_pack.h"
#include "store/cuda/transfer_memory.h"
#include "store/page_copy.h"

namespace store::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using core::SaveMethod;
using device::cuda::to_result;

constexpr int64_t kTickets = 1024;            // on their way
constexpr int64_t kParts = 1024;              // likewise
constexpr int64_t kListRuns = 1 << 16;        // of all parts on their way
constexpr int64_t kScatterBytes = 256 << 10;  // that a worker takes at a time
constexpr int64_t kRowParts = 16;             // of rows, that the ring holds at least
constexpr int32_t kScatterColumns = 64;       // of a row that a worker takes at a time
constexpr int kDirectBlocks = 8;              // gpu-direct: stores in flight are posted, few do
constexpr int kPackBlocks = 16;               // packing is 2 x 4 MB of HBM a block of the 8B shape

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

base::Result<void> record(cudaStream_t stream, const device::cuda::Event& event) {
  return to_result(cudaEventRecord(event.handle(), stream), "recording a save");
}

// One row on the frames' side: their copy needs no packing.
bool is_contiguous(const PlacedRun* runs, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    if (runs[i].run.from != runs[i - 1].run.from + runs[i - 1].run.bytes) return false;
  }
  return true;
}

int64_t part_bytes_max(const TransferOptions& options) {
  if (options.save != SaveMethod::kStaged) return int64_t{1} << 40;
  return save_part_bytes(options.staging_bytes);
}

int64_t rows_part_bytes(const RowShape& rows) {
  return rows.rows_max * rows.packed_bytes();
}

// Of the pinned ring.
int64_t staging_bytes(const TransferOptions& options) {
  if (options.save == SaveMethod::kStaged) return options.staging_bytes;
  return std::min(options.staging_bytes, kRowParts * rows_part_bytes(options.rows));
}

int num_workers(const TransferOptions& options) {
  const bool scatters = options.save == SaveMethod::kStaged || options.rows.rows_max > 0;
  return scatters ? std::max(1, options.num_workers) : 1;
}

}  // namespace

Saves::Saves(const device::cuda::GpuInfo& gpu, const TransferOptions& options)
    : gpu_(gpu),
      options_(options),
      part_bytes_max_(part_bytes_max(options)),
      rows_(static_cast<size_t>(kRowParts * options.rows.rows_max)),
      workers_(num_workers(options)),
      parts_(kParts),
      staging_ring_(std::max<int64_t>(1, staging_bytes(options))),
      lists_ring_(kListRuns),
      rows_ring_(std::ssize(rows_)) {}

base::Result<std::unique_ptr<Saves>> Saves::create(const device::cuda::GpuInfo& gpu,
                                                   const TransferOptions& options) {
  CHECK(options.save != SaveMethod::kAuto && options.page_bytes > 0, "{} bytes a page",
        options.page_bytes);
  if (options.save == SaveMethod::kStaged && options.staging_bytes < 2 * options.page_bytes) {
    return base::error(base::Code::kTooLarge,
                       "a staging ring of {} bytes does not hold two pages of {}",
                       options.staging_bytes, options.page_bytes);
  }
  const RowShape& rows = options.rows;
  CHECK(rows.row_bytes % 16 == 0 &&
            std::ssize(rows.home_columns) == rows.frame_columns + rows.ring_columns,
        "rows of {} bytes in {} columns", rows.row_bytes, rows.home_columns.size());
  if (options.staging_bytes < 2 * rows_part_bytes(rows)) {
    const int64_t fitting = options.staging_bytes / 2 / rows.packed_bytes();
    return base::error(
        base::Code::kTooLarge,
        "--save-granularity step saves {} rows of {} a step, and the staging ring of "
        "{} does not hold two of them: {}use --save-granularity pages",
        rows.rows_max, base::format_bytes(rows.packed_bytes()),
        base::format_bytes(options.staging_bytes),
        fitting > 0 ? fmt::format("lower --max-num-seqs to {} or ", fitting) : "");
  }
  std::unique_ptr<Saves> saves(new Saves(gpu, options));
  RETURN_IF_ERROR(saves->init());
  return saves;
}

bool Saves::needs_list() const {
  return options_.save == SaveMethod::kStaged || options_.save == SaveMethod::kGpuDirect;
}

base::Result<void> Saves::init() {
  using device::cuda::Buffer;
  using device::cuda::Event;
  using device::cuda::PinnedBuffer;
  ASSIGN_OR_RETURN(stream_, device::cuda::Stream::create());
  for (int64_t i = 0; i < kTickets; ++i) {
    ASSIGN_OR_RETURN(Event event, Event::create());
    frames_.push_back(std::move(event));
  }
  for (Part& part : parts_) {
    ASSIGN_OR_RETURN(part.begun, Event::create(/*timed=*/true));
    ASSIGN_OR_RETURN(part.arrived, Event::create(/*timed=*/true));
  }
  if (needs_list()) {
    ASSIGN_OR_RETURN(lists_, PinnedBuffer::allocate(kListRuns * sizeof(PlacedRun), "saves"));
    ASSIGN_OR_RETURN(device_list_, Buffer::allocate(save_list_bytes(options_.save), "saves"));
  }
  if (const int64_t bytes = staging_bytes(options_); bytes > 0) {
    const int64_t packed =
        save_packed_bytes(options_.save, options_.staging_bytes, rows_part_bytes(options_.rows));
    ASSIGN_OR_RETURN(staging_, PinnedBuffer::allocate(bytes, "staged saves"));
    ASSIGN_OR_RETURN(packed_, Buffer::allocate(packed, "staged saves"));
  }
  committer_ = std::thread([this] { commit_parts(); });
  return {};
}

Saves::~Saves() {
  if (!committer_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  work_.notify_one();
  committer_.join();
}

// Engine's thread, mutex held by `ready`: until the committing thread has made room.
template <typename Ready>
void Saves::wait_until(Ready ready) {
  std::unique_lock lock(mutex_);
  if (ready()) return;
  ++counters_.save_waits;
  ended_.wait(lock, ready);
}

SaveTicket Saves::begin_ticket() {
  const SaveTicket ticket = tickets_.issue();
  last_issued_ = ticket;
  wait_until([&] { return ticket <= kTickets || tickets_.has_ended(ticket - kTickets); });
  return ticket;
}

SaveTicket Saves::save(std::span<const Run> runs, const device::cuda::Event& ready) {
  if (options_.drop_saves) runs = {};
  const SaveTicket ticket = begin_ticket();
  auto waits = to_result(cudaStreamWaitEvent(stream_.handle(), ready.handle(), 0), "a save");
  if (needs_list() && !runs.empty()) {
    save_by_list(ticket, runs, std::move(waits));
  } else {
    save_directly(ticket, runs, std::move(waits));
  }
  return ticket;
}

SaveTicket Saves::save_rows(std::span<const RowSave> rows, const device::cuda::Event& ready) {
  CHECK(std::ssize(rows) <= options_.rows.rows_max, "{} rows of a step of {}", rows.size(),
        options_.rows.rows_max);
  if (options_.drop_saves) rows = {};
  const SaveTicket ticket = begin_ticket();
  Part& part = next_part(ticket);
  part.issued = to_result(cudaStreamWaitEvent(stream_.handle(), ready.handle(), 0), "a save");
  if (!rows.empty()) {
    place_rows(rows, &part);
    if (part.issued.ok()) part.issued = issue_rows(&part);
  }
  // Recorded even so: what was issued before a failure still reads the frames.
  auto recorded = record(stream_.handle(), frames_[ticket % kTickets]);
  if (part.issued.ok()) part.issued = std::move(recorded);
  push_part(&part);
  return ticket;
}

// The list and the bytes of a step's rows in the rings.
void Saves::place_rows(std::span<const RowSave> rows, Part* part) {
  int64_t list_place = 0, staging_place = 0;
  part->bytes = std::ssize(rows) * options_.rows.packed_bytes();
  wait_until([&] { return rows_ring_.try_take(std::ssize(rows), &list_place); });
  wait_until([&] { return staging_ring_.try_take(part->bytes, &staging_place); });
  std::ranges::copy(rows, rows_.begin() + list_place);
  part->rows = {rows_.data() + list_place, rows.size()};
  part->staged = staging_.data() + staging_place;
  part->staging_head = staging_ring_.head();
  part->rows_head = rows_ring_.head();
}

// Behind `ready` on the stream and in front of the part's first copy.
base::Result<void> Saves::begin_copies(Part* part) {
  RETURN_IF_ERROR(record(stream_.handle(), part->begun));
  part->is_timed = true;
  return {};
}

base::Result<void> Saves::issue_rows(Part* part) {
  RETURN_IF_ERROR(begin_copies(part));
  RETURN_IF_ERROR(
      pack_rows(stream_.handle(), options_.rows, options_.page_bytes, part->rows, packed_.data()));
  return to_result(
      cudaMemcpyAsync(const_cast<std::byte*>(part->staged), packed_.data(),
                      static_cast<size_t>(part->bytes), cudaMemcpyDeviceToHost, stream_.handle()),
      "a save of rows");
}

Saves::Part& Saves::next_part(SaveTicket ticket) {
  wait_until([&] { return parts_issued_ - parts_ended_ < kParts; });
  Part& part = parts_[static_cast<size_t>(parts_issued_ % kParts)];
  part.ticket = ticket;
  part.ends_ticket = true;
  part.runs = nullptr;
  part.rows = {};
  part.staged = nullptr;
  part.num_runs = part.bytes = 0;
  part.is_timed = false;
  part.staging_head = staging_ring_.head();
  part.runs_head = lists_ring_.head();
  part.rows_head = rows_ring_.head();
  part.issued = {};
  return part;
}

void Saves::save_directly(SaveTicket ticket, std::span<const Run> runs, base::Result<void> ready) {
  Part& part = next_part(ticket);
  part.issued = std::move(ready);
  for (const Run& run : runs) part.bytes += run.bytes;
  if (part.issued.ok() && !runs.empty()) part.issued = begin_copies(&part);
  if (part.issued.ok()) {
    part.issued = options_.save == SaveMethod::kMemcpy
                      ? copier_.copy_pages(stream_.handle(), runs, options_.page_bytes)
                      : copier_.copy_extents(stream_.handle(), runs);
  }
  // Recorded even so: what was issued before the failure still reads the frames.
  auto recorded = record(stream_.handle(), frames_[ticket % kTickets]);
  if (part.issued.ok()) part.issued = std::move(recorded);
  push_part(&part);
}

void Saves::save_by_list(SaveTicket ticket, std::span<const Run> runs, base::Result<void> ready) {
  int64_t skipped = 0;  // of the first run: what earlier parts have taken
  while (!runs.empty()) {
    Part& part = next_part(ticket);
    const PlacedRun* placed = place_part(&runs, &skipped, &part);
    part.ends_ticket = runs.empty();
    part.issued = ready;
    if (part.issued.ok()) part.issued = issue_list(placed, &part);
    push_part(&part);
  }
}

// Takes runs for a part from the front of `runs`, and room for them in the rings.
PlacedRun* Saves::place_part(std::span<const Run>* runs, int64_t* skipped, Part* part) {
  int64_t list_place = 0, staging_place = 0, bytes = 0, num_runs = 0;
  for (int64_t left = part_bytes_max_, skip = *skipped;
       left > 0 && num_runs < kSavePartRuns && num_runs < std::ssize(*runs); ++num_runs, skip = 0) {
    const int64_t own = std::min(left, (*runs)[static_cast<size_t>(num_runs)].bytes - skip);
    left -= own;
    bytes += own;
  }
  wait_until([&] { return lists_ring_.try_take(num_runs, &list_place); });
  if (options_.save == SaveMethod::kStaged) {
    wait_until([&] { return staging_ring_.try_take(bytes, &staging_place); });
    part->staged = staging_.data() + staging_place;
  }
  PlacedRun* placed = lists_.as<PlacedRun>() + list_place;
  for (int64_t i = 0, offset = 0; i < num_runs; ++i) {
    const Run& run = runs->front();
    const int64_t own = std::min(bytes - offset, run.bytes - *skipped);
    placed[i] = {{run.to + *skipped, run.from + *skipped, own}, offset};
    offset += own;
    *skipped += own;
    if (*skipped == run.bytes) {
      *skipped = 0;
      *runs = runs->subspan(1);
    }
  }
  part->runs = placed;
  part->num_runs = num_runs;
  part->bytes = bytes;
  part->staging_head = staging_ring_.head();
  part->runs_head = lists_ring_.head();
  return placed;
}

base::Result<void> Saves::issue_list(const PlacedRun* placed, Part* part) {
  auto issued = [&]() -> base::Result<void> {
    RETURN_IF_ERROR(begin_copies(part));
    if (options_.save == SaveMethod::kStaged) return issue_staged(placed, part);
    const auto count = static_cast<int32_t>(part->num_runs);
    RETURN_IF_ERROR(to_result(
        cudaMemcpyAsync(device_list_.data(), placed, static_cast<size_t>(count) * sizeof(PlacedRun),
                        cudaMemcpyHostToDevice, stream_.handle()),
        "the list of a save"));
    return copy_runs(stream_.handle(), device_list_.as<PlacedRun>(), count, part->bytes, nullptr,
                     kDirectBlocks);
  }();
  if (options_.save == SaveMethod::kStaged && issued.ok()) return issued;
  auto recorded = record(stream_.handle(), frames_[part->ticket % kTickets]);
  return issued.ok() ? std::move(recorded) : std::move(issued);
}

// Frames to one run of device memory by a kernel, unless they are one run already; that run to the
// pinned ring by one copy. The frames are free after the first of the two.
base::Result<void> Saves::issue_staged(const PlacedRun* placed, Part* part) {
  const cudaStream_t stream = stream_.handle();
  auto* staged = const_cast<std::byte*>(part->staged);
  const auto copy = [&](const std::byte* from) {
    return to_result(cudaMemcpyAsync(staged, from, static_cast<size_t>(part->bytes),
                                     cudaMemcpyDeviceToHost, stream),
                     "a staged save");
  };
  const device::cuda::Event& frames = frames_[part->ticket % kTickets];
  if (is_contiguous(placed, part->num_runs)) {
    RETURN_IF_ERROR(copy(placed[0].run.from));
    return record(stream, frames);
  }
  const auto count = static_cast<int32_t>(part->num_runs);
  RETURN_IF_ERROR(to_result(
      cudaMemcpyAsync(device_list_.data(), placed, static_cast<size_t>(count) * sizeof(PlacedRun),
                      cudaMemcpyHostToDevice, stream),
      "the list of a save"));
  RETURN_IF_ERROR(copy_runs(stream, device_list_.as<PlacedRun>(), count, part->bytes,
                            packed_.data(), kPackBlocks));
  RETURN_IF_ERROR(record(stream, frames));
  return copy(packed_.data());
}

void Saves::push_part(Part* part) {
  auto recorded = record(stream_.handle(), part->arrived);
  part->is_timed = part->is_timed && recorded.ok();
  if (part->issued.ok()) part->issued = std::move(recorded);
  {
    std::lock_guard lock(mutex_);
    ++parts_issued_;
  }
  work_.notify_one();
}

void Saves::commit_parts() {
  if (const auto used = device::cuda::use_gpu(gpu_); !used.ok())
    LOG_ERROR("saves: {}", used.error().message);
  for (;;) {
    std::unique_lock lock(mutex_);
    work_.wait(lock, [&] { return stops_ || parts_ended_ < parts_issued_; });
    if (parts_ended_ == parts_issued_) return;
    Part& part = parts_[static_cast<size_t>(parts_ended_ % kParts)];
    lock.unlock();
    finish(&part);
    lock.lock();
    staging_ring_.release_through(part.staging_head);
    lists_ring_.release_through(part.runs_head);
    rows_ring_.release_through(part.rows_head);
    if (part.ends_ticket) tickets_.end_through(part.ticket);
    ++parts_ended_;
    lock.unlock();
    ended_.notify_all();
  }
}

// Of a part that has arrived, as the GPU's clock has it: what was waited for before is not in it.
int64_t Saves::copies_ns(const Part& part) const {
  float ms = 0.0f;
  if (!part.is_timed ||
      cudaEventElapsedTime(&ms, part.begun.handle(), part.arrived.handle()) != cudaSuccess) {
    return 0;
  }
  // What ran while the part before was scattered has been counted.
  return std::min(static_cast<int64_t>(1e6 * ms), now_ns() - scattered_ns_);
}

void Saves::finish(Part* part) {
  // Waited for even where issuing failed: earlier copies may still write what is to be released.
  auto done = to_result(cudaEventSynchronize(part->arrived.handle()), "a save");
  int64_t took_ns = done.ok() ? copies_ns(*part) : 0;
  if (!part->issued.ok()) done = std::move(part->issued);
  if (done.ok() && options_.fault) done = options_.fault(part->ticket);
  if (done.ok() && part->staged != nullptr) {
    const int64_t arrived_ns = now_ns();
    part->rows.empty() ? scatter(*part) : scatter_rows(*part);
    scattered_ns_ = now_ns();
    took_ns += scattered_ns_ - arrived_ns;
  }
  if (!done.ok()) tickets_.fail(part->ticket, nullptr, done.error());
  std::lock_guard lock(mutex_);
  save_ns_ += took_ns;
  if (!done.ok()) return;
  counters_.bytes_saved += part->bytes;
  counters_.rows_saved += std::ssize(part->rows);
}

void Saves::scatter_rows(const Part& part) {
  const RowShape& shape = options_.rows;
  const auto columns = static_cast<int32_t>(shape.home_columns.size());
  const int64_t row_items = (columns + kScatterColumns - 1) / kScatterColumns;
  workers_.parallel_for(std::ssize(part.rows) * row_items, [&](int64_t item, int) {
    const int64_t row = item / row_items;
    const auto begin = static_cast<int32_t>(item % row_items) * kScatterColumns;
    put_row(shape, options_.page_bytes, part.rows[static_cast<size_t>(row)],
            part.staged + row * shape.packed_bytes(), begin,
            std::min(columns, begin + kScatterColumns));
    finish_stores(Stores::kStreaming);  // before the worker's release at the end of the loop
  });
}

void Saves::scatter(const Part& part) {
  const int64_t items = (part.bytes + kScatterBytes - 1) / kScatterBytes;
  workers_.parallel_for(items, [&](int64_t item, int) {
    int64_t at = item * kScatterBytes;
    const int64_t end = std::min(at + kScatterBytes, part.bytes);
    const std::span<const PlacedRun> runs(part.runs, static_cast<size_t>(part.num_runs));
    auto next = std::ranges::upper_bound(runs, at, {}, &PlacedRun::offset) - 1;
    for (; at < end; ++next) {
      const int64_t skipped = at - next->offset;
      const int64_t bytes = std::min(next->run.bytes - skipped, end - at);
      copy_bytes(next->run.to + skipped, part.staged + at, bytes, Stores::kStreaming);
      at += bytes;
    }
    finish_stores(Stores::kStreaming);  // before the worker's release at the end of the loop
  });
}

bool Saves::frames_free(SaveTicket ticket) const {
  CHECK(ticket <= last_issued_, "ticket {} of {}", ticket, last_issued_);
  return tickets_.has_ended(ticket) || frames_[ticket % kTickets].is_done();
}

base::Result<void> Saves::wait(SaveTicket ticket) {
  CHECK(ticket <= last_issued_, "ticket {} of {}", ticket, last_issued_);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return tickets_.has_ended(ticket); });
  return tickets_.result(ticket);
}

base::Result<void> Saves::wait_frames(SaveTicket ticket) {
  CHECK(ticket <= last_issued_, "ticket {} of {}", ticket, last_issued_);
  if (tickets_.has_ended(ticket)) return {};
  return to_result(cudaEventSynchronize(frames_[ticket % kTickets].handle()), "a save");
}

TransferCounters Saves::counters() const {
  std::lock_guard lock(mutex_);
  TransferCounters now = counters_;
  now.save_us = save_ns_ / 1000;
  now.pages_saved = now.bytes_saved / options_.page_bytes;
  now.saves_failed = tickets_.num_failed();
  return now;
}

}  // namespace store::cuda
