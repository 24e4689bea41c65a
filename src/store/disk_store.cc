#include "store/disk_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/sizes.h"

namespace store {
namespace {

// The books of a record take some 200 bytes of memory, for ever: 16 million are 3 GiB.
constexpr uint64_t kRecordsMax = 1 << 24;
constexpr int kIoThreads = 4;  // without io_uring
// A read or write that takes longer than this is waited for all the same, in another turn.
constexpr int64_t kWaitUs = 100'000;
constexpr int64_t kWarningsMax = 8;

int64_t slots_each_way(const DiskStoreOptions& options) {
  const int64_t stride = record_stride_bytes(options.payload_bytes);
  return std::clamp<int64_t>(options.buffers_bytes / 2 / stride, 2, 64);
}

}  // namespace

void DiskStore::OwnedEntry::set(const core::DiskEntry& from) {
  CHECK(from.tokens.size() <= kRecordTokensMax, "{} tokens", from.tokens.size());
  entry = from;
  std::ranges::copy(from.tokens, tokens.begin());
}

core::DiskEntry DiskStore::OwnedEntry::get() const {
  core::DiskEntry copy = entry;
  copy.tokens = std::span(tokens).first(entry.tokens.size());
  return copy;
}

base::Result<std::unique_ptr<DiskStore>> DiskStore::open(const DiskStoreOptions& options) {
  CHECK(options.payload_bytes > 0 && options.page_tokens > 0 &&
        options.page_tokens <= kRecordTokensMax);
  std::unique_ptr<DiskStore> store(new DiskStore(options));
  if (store->num_records_ == 0) {
    return base::error(
        base::Code::kInvalidArgument, "the disk tier of {} is smaller than one record of {}",
        base::format_bytes(options.capacity_bytes), base::format_bytes(store->stride_bytes_));
  }
  if (store->num_records_ > kRecordsMax) {
    return base::error(base::Code::kTooLarge,
                       "the disk tier of {} is {} records of {}, at most {} can be kept track of",
                       base::format_bytes(options.capacity_bytes), store->num_records_,
                       base::format_bytes(store->stride_bytes_), kRecordsMax);
  }
  RETURN_IF_ERROR(store->lock_folder());
  store->shelf_.emplace(options.path, store->identity().text(), options.capacity_bytes);
  RETURN_IF_ERROR(store->open_index());
  RETURN_IF_ERROR(store->open_data(store->entries_.empty()));
  RETURN_IF_ERROR(store->make_buffers());
  LOG_INFO("disk tier: {} records of {} in {}, {} of them filled, through {}, {} of buffers",
           store->num_records_, base::format_bytes(store->stride_bytes_), options.path,
           store->entries_.size(), store->io_name(), base::format_bytes(store->buffers_.size()));
  store->warn_of_space();
  return store;
}

DiskStore::DiskStore(const DiskStoreOptions& options)
    : options_(options),
      stride_bytes_(record_stride_bytes(options.payload_bytes)),
      num_records_(static_cast<uint64_t>(std::max<int64_t>(0, options.capacity_bytes)) /
                   static_cast<uint64_t>(stride_bytes_)),
      fingerprint_(digest(options.fingerprint)) {}

DiskStore::~DiskStore() {
  while (std::ranges::any_of(slots_, [](const Slot& s) { return s.state == State::kWriting; }))
    reap(kWaitUs);
  io_.reset();
  writer_.reset();
  index_.reset();
  if (data_fd_ >= 0) ::close(data_fd_);
  if (lock_fd_ >= 0) ::close(lock_fd_);  // last: the folder is another's now
}

base::Result<void> DiskStore::lock_folder() {
  if (::mkdir(options_.path.c_str(), 0700) != 0 && errno != EEXIST) {
    return base::error(base::Code::kIo, "cannot make the folder of the disk tier, {}: {}",
                       options_.path, std::strerror(errno));
  }
  const std::string path = file("lock");
  lock_fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) {
    return base::error(base::Code::kIo, "cannot write in the folder of the disk tier, {}: {}", path,
                       std::strerror(errno));
  }
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return base::error(base::Code::kInvalidArgument,
                       "the disk tier in {} is in use by another process; give each its own folder",
                       options_.path);
  }
  return {};
}

// Fills entries_. A damaged index is replaced by an empty one.
base::Result<void> DiskStore::open_index() {
  const std::string path = file("index.sqlite");
  for (int attempt = 0;; ++attempt) {
    bool started_empty = false;
    ASSIGN_OR_RETURN(index_, DiskIndex::open(path, identity(), &started_empty));
    const base::Result<void> read = index_->read_all(
        num_records_, [&](const core::DiskEntry& e) { entries_.emplace_back().set(e); });
    if (read.ok()) return {};
    if (attempt > 0) return read;
    LOG_WARN("the disk tier starts empty; the index at {} is damaged: {}", path,
             read.error().message);
    entries_.clear();
    index_.reset();
    DiskIndex::remove_files(path);
  }
}

base::Result<void> DiskStore::open_data(bool empty) {
  const std::string path = file("pages.spillway");
  data_fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (empty ? O_TRUNC : 0), 0600);
  if (data_fd_ < 0) {
    return base::error(base::Code::kIo, "cannot open {}: {}", path, std::strerror(errno));
  }
  struct stat data{};
  if (::fstat(data_fd_, &data) == 0) file_bytes_ = data.st_size;
  writer_ = std::make_unique<IndexWriter>(std::move(*index_), data_fd_);
  index_.reset();
  return {};
}

// Not an error: others may give space back, and a full disk only means records not written.
void DiskStore::warn_of_space() const {
  struct statvfs space{};
  struct stat data{};
  if (::fstatvfs(data_fd_, &space) != 0 || ::fstat(data_fd_, &data) != 0) return;
  const auto free_bytes = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  const int64_t used_bytes = int64_t{data.st_blocks} * 512;
  const int64_t wanted_bytes = static_cast<int64_t>(num_records_) * stride_bytes_ - used_bytes;
  if (wanted_bytes > free_bytes) {
    LOG_WARN("the disk tier may grow by {}, its disk has {} free", base::format_bytes(wanted_bytes),
             base::format_bytes(free_bytes));
  }
}

base::Result<void> DiskStore::make_buffers() {
  num_write_slots_ = static_cast<size_t>(slots_each_way(options_));
  slots_.resize(2 * num_write_slots_);
  ASSIGN_OR_RETURN(buffers_, device::Buffer::allocate(std::ssize(slots_) * stride_bytes_,
                                                      "records on their way to the disk"));
  for (size_t i = 0; i < slots_.size(); ++i)
    slots_[i].record = buffers_.data() + static_cast<int64_t>(i) * stride_bytes_;
  const auto depth = static_cast<uint32_t>(slots_.size());
  done_.reserve(depth);
  if (options_.use_io_uring) {
    base::Result<std::unique_ptr<FileIo>> uring = make_uring_io(data_fd_, depth);
    if (uring.ok()) {
      io_ = std::move(uring).value();
      return {};
    }
    LOG_INFO("{}; the disk tier uses threads", uring.error().message);
  }
  io_ = make_thread_io(data_fd_, depth, kIoThreads);
  return {};
}

int64_t DiskStore::buffers_bytes(const DiskStoreOptions& options) {
  return 2 * slots_each_way(options) * record_stride_bytes(options.payload_bytes);
}

void DiskStore::take_entries(const std::function<void(const core::DiskEntry&)>& entry) {
  for (const OwnedEntry& owned : entries_) entry(owned.get());
  entries_ = {};
}

std::span<std::byte> DiskStore::record_of(const Slot& slot) const {
  return {slot.record, static_cast<size_t>(kRecordHeaderBytes + options_.payload_bytes)};
}

DiskStore::Slot* DiskStore::find_free(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    if (slots_[i].state == State::kFree) return &slots_[i];
  }
  return nullptr;
}

bool DiskStore::is_busy(uint64_t record) const {
  return std::ranges::any_of(slots_, [&](const Slot& slot) {
    return (slot.state == State::kWriting || slot.state == State::kReading) &&
           slot.owned.entry.record == record;
  });
}

std::span<std::byte> DiskStore::next_payload() {
  if (!filling_) {
    Slot* slot = find_free(0, num_write_slots_);
    if (slot == nullptr) ++counters_.write_waits;
    for (; slot == nullptr; slot = find_free(0, num_write_slots_)) reap(kWaitUs);
    slot->state = State::kFilling;
    filling_ = static_cast<size_t>(slot - slots_.data());
  }
  return record_of(slots_[*filling_]).subspan(kRecordHeaderBytes);
}

void DiskStore::write(const core::DiskEntry& entry) {
  CHECK(filling_ && entry.record < num_records_ && std::ssize(entry.tokens) == options_.page_tokens,
        "record {} of {}, {} tokens", entry.record, num_records_, entry.tokens.size());
  while (is_busy(entry.record)) reap(kWaitUs);
  Slot& slot = slots_[*filling_];
  filling_.reset();
  slot.owned.set(entry);
  seal_record(record_of(slot), slot.owned.get(), fingerprint_);
  const int64_t end = static_cast<int64_t>(entry.record + 1) * stride_bytes_;
  if (end > file_bytes_) shelf_->make_room(file_bytes_ = end);
  submit(&slot, true);
}

void DiskStore::read(core::BlockId block, const core::DiskEntry& entry) {
  CHECK(entry.record < num_records_ && std::ssize(entry.tokens) == options_.page_tokens,
        "record {} of {}, {} tokens", entry.record, num_records_, entry.tokens.size());
  waiting_.emplace_back().block = block;
  waiting_.back().owned.set(entry);
  start_waiting_reads();
}

// In order, as far as there are buffers; one whose record is being written waits, and those behind
// it with it.
void DiskStore::start_waiting_reads() {
  while (!waiting_.empty() && !is_busy(waiting_.front().owned.entry.record)) {
    Slot* const slot = find_free(num_write_slots_, slots_.size());
    if (slot == nullptr) return;
    slot->owned = waiting_.front().owned;
    slot->block = waiting_.front().block;
    waiting_.pop_front();
    ++num_reads_;
    submit(slot, false);
  }
}

void DiskStore::submit(Slot* slot, bool is_write) {
  slot->state = is_write ? State::kWriting : State::kReading;
  slot->error = options_.fault ? options_.fault(is_write, slot->owned.entry.record) : 0;
  io_->submit({.is_write = is_write,
               .offset = static_cast<int64_t>(slot->owned.entry.record) * stride_bytes_,
               .bytes = std::ssize(record_of(*slot)),
               .data = slot->record,
               .tag = static_cast<uint32_t>(slot - slots_.data())});
}

// Finishes writes; reads wait in state kRead for poll().
void DiskStore::reap(int64_t timeout_us) {
  done_.clear();
  io_->poll(timeout_us, &done_);
  for (const FileIo::Done& done : done_) {
    Slot* const slot = &slots_[done.tag];
    if (slot->error == 0) slot->error = done.error;
    if (slot->state == State::kWriting) {
      finish_write(slot);
    } else {
      slot->state = State::kRead;
    }
  }
}

void DiskStore::finish_write(Slot* slot) {
  slot->state = State::kFree;
  if (slot->error == 0) {
    ++counters_.records_written;
    writer_->add(IndexChange::put(slot->owned.get()));
    return;
  }
  if (slot->error == ENOSPC) shelf_->give_up_one();
  if (counters_.writes_failed++ == 0) {
    LOG_ERROR("the disk tier cannot write record {}: {}; what it would have held is computed again",
              slot->owned.entry.record, std::strerror(slot->error));
  }
  unwritten_.push_back(slot->owned.entry.record);
  writer_->add({.kind = IndexChange::Kind::kForget, .entry = {.record = slot->owned.entry.record}});
}

// True: the payload is what was asked for.
bool DiskStore::finish_read(Slot* slot) {
  const core::DiskEntry entry = slot->owned.get();
  base::Result<void> checked;
  if (slot->error != 0) {
    checked = base::error(base::Code::kIo, "record {} of the disk tier: {}", entry.record,
                          std::strerror(slot->error));
  } else {
    checked = check_record(record_of(*slot), entry, fingerprint_);
  }
  if (checked.ok()) {
    ++counters_.records_read;
    writer_->add({.kind = IndexChange::Kind::kTouch, .entry = {.record = entry.record}});
    return true;
  }
  // A few in a row are what a crash leaves behind; a damaged disk would fill the log.
  if (counters_.reads_failed++ < kWarningsMax) {
    LOG_WARN("{}; its {} tokens are computed again", checked.error().message, entry.tokens.size());
  }
  writer_->add({.kind = IndexChange::Kind::kForget, .entry = {.record = entry.record}});
  return false;
}

void DiskStore::poll(int64_t timeout_us, const std::function<void(const Read&)>& read) {
  start_waiting_reads();
  reap(is_reading() ? timeout_us : 0);
  for (size_t i = num_write_slots_; i < slots_.size(); ++i) {
    Slot* const slot = &slots_[i];
    if (slot->state != State::kRead) continue;
    const bool good = finish_read(slot);
    --num_reads_;
    slot->state = State::kFree;
    read({slot->block,
          good ? record_of(*slot).subspan(kRecordHeaderBytes) : std::span<const std::byte>()});
  }
  start_waiting_reads();
}

bool DiskStore::sync(std::span<const uint64_t> used) {
  while (std::ranges::any_of(slots_, [](const Slot& s) { return s.state == State::kWriting; }))
    reap(kWaitUs);
  for (const uint64_t record : used) {
    if (writer_->is_half_full()) writer_->flush();
    writer_->add({.kind = IndexChange::Kind::kTouch, .entry = {.record = record}});
  }
  writer_->flush();
  const int64_t failures = counters_.writes_failed + writer_->num_dropped();
  return std::exchange(failures_synced_, failures) == failures;
}

void DiskStore::take_unwritten(std::vector<uint64_t>* records) {
  records->insert(records->end(), unwritten_.begin(), unwritten_.end());
  unwritten_.clear();
}

DiskCounters DiskStore::counters() const {
  DiskCounters counters = counters_;
  counters.rows_dropped = writer_->num_dropped();
  return counters;
}

}  // namespace store
