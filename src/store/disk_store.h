// The disk tier's bytes: blocks that have left the host tier, one record each in one file.
//
//   DIR/pages.spillway    records of a fixed size; record r at r * stride (store/disk_record.h)
//   DIR/index.sqlite      which record holds what (store/disk_index.h)
//   DIR/lock              held by the one process that uses the folder
//   DIR/owner, aside-*    whose the files are, and other models' (store/disk_shelf.h)
//
// A cache and nothing more: whatever is missing, torn, stale, damaged or unreadable is no record,
// and its tokens are computed again. Which record holds what, and which one is overwritten next,
// kv/disk_catalog decides. Reads and writes run beside the step, from and to buffers of a fixed
// number; a row of the index is committed only after its record has reached the disk. Operations on
// one record run in the order they were issued. Thread: the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/ids.h"
#include "core/step.h"
#include "device/buffer.h"
#include "store/disk_record.h"
#include "store/disk_shelf.h"
#include "store/file_io.h"
#include "store/index_writer.h"

namespace store {

struct DiskStoreOptions {
  std::string path;                  // a folder; made if its parent is there
  int64_t capacity_bytes = 0;        // of pages.spillway at most
  int64_t payload_bytes = 0;         // a block's pages
  int32_t page_tokens = 0;           // P, at most kRecordTokensMax
  std::string fingerprint;           // model, KV type, pages, heads: each has records of its own
  int64_t buffers_bytes = 64 << 20;  // of records on their way, at least two each way
  bool use_io_uring = true;          // where the kernel lets us
  // Tests: an errno for an operation on this record; 0: go on.
  std::function<int(bool is_write, uint64_t record)> fault;
};

struct DiskCounters {
  int64_t records_written = 0, records_read = 0;
  int64_t writes_failed = 0;
  int64_t reads_failed = 0;  // not to be had, or not what was asked for
  int64_t write_waits = 0;   // times that a write waited for a buffer
  int64_t rows_dropped = 0;  // changes that the index never saw
};

class DiskStore {
 public:
  // Errors: kInvalidArgument (another process holds the folder; room for less than one record),
  // kIo.
  static base::Result<std::unique_ptr<DiskStore>> open(const DiskStoreOptions& options);
  ~DiskStore();  // waits for what is on its way and commits it

  uint64_t num_records() const { return num_records_; }
  const char* io_name() const { return io_->name(); }
  // Bytes that open() takes beside the index's own.
  static int64_t buffers_bytes(const DiskStoreOptions& options);

  // What the index held at open(), least recently used first; calls once, then forgets them.
  void take_entries(const std::function<void(const core::DiskEntry&)>& entry);

  // A free buffer for the pages of the next write; waits for one.
  std::span<std::byte> next_payload();  // (payload_bytes)
  // Writes the payload that next_payload() gave as this record. REQUIRES: P tokens.
  void write(const core::DiskEntry& entry);

  // Reads a record for `block`; the bytes come through poll(). REQUIRES: P tokens.
  void read(core::BlockId block, const core::DiskEntry& entry);

  struct Read {
    core::BlockId block{};
    std::span<const std::byte> payload;  // empty: not to be had
  };
  // Hands over every read that has ended, in any order; the payload is gone after the call. Waits
  // up to timeout_us for the first if something is on its way.
  void poll(int64_t timeout_us, const std::function<void(const Read&)>& read);
  bool is_reading() const { return num_reads_ > 0 || !waiting_.empty(); }

  // Waits until every write has ended and the index has every row, then commits that the records of
  // `used` were used last, in this order. False: a write failed, or a row was dropped, since
  // the last sync(), or open().
  bool sync(std::span<const uint64_t> used);

  // Records whose write failed since the last call, appended.
  void take_unwritten(std::vector<uint64_t>* records);
  DiskCounters counters() const;

 private:
  // An entry with the tokens in it.
  struct OwnedEntry {
    core::DiskEntry entry;
    std::array<core::TokenId, kRecordTokensMax> tokens{};
    void set(const core::DiskEntry& from);
    core::DiskEntry get() const;
  };
  enum class State : uint8_t { kFree, kFilling, kWriting, kReading, kRead };
  struct Slot {
    State state = State::kFree;
    OwnedEntry owned;
    core::BlockId block{};
    std::byte* record = nullptr;  // (stride) header and payload
    int error = 0;
  };
  struct WaitingRead {
    core::BlockId block{};
    OwnedEntry owned;
  };

  explicit DiskStore(const DiskStoreOptions& options);
  base::Result<void> lock_folder();
  DiskIndexIdentity identity() const {
    return {options_.fingerprint, options_.payload_bytes, options_.page_tokens};
  }
  base::Result<void> open_index();
  base::Result<void> open_data(bool empty);
  base::Result<void> make_buffers();
  void warn_of_space() const;
  std::string file(const char* name) const { return options_.path + "/" + name; }
  std::span<std::byte> record_of(const Slot& slot) const;

  Slot* find_free(size_t begin, size_t end);
  bool is_busy(uint64_t record) const;
  void submit(Slot* slot, bool is_write);
  void start_waiting_reads();
  void reap(int64_t timeout_us);
  void finish_write(Slot* slot);
  bool finish_read(Slot* slot);

  const DiskStoreOptions options_;
  const int64_t stride_bytes_;
  const uint64_t num_records_;
  const Digest fingerprint_;
  int lock_fd_ = -1, data_fd_ = -1;
  std::optional<DiskShelf> shelf_;
  int64_t file_bytes_ = 0;          // of the data file, as far as it was ever written
  std::optional<DiskIndex> index_;  // until the writer takes it
  std::unique_ptr<IndexWriter> writer_;
  std::vector<OwnedEntry> entries_;
  device::Buffer buffers_;
  std::vector<Slot> slots_;  // the first half writes, the second reads
  size_t num_write_slots_ = 0;
  std::optional<size_t> filling_;
  std::deque<WaitingRead> waiting_;
  int64_t num_reads_ = 0;
  std::vector<FileIo::Done> done_;
  std::vector<uint64_t> unwritten_;
  DiskCounters counters_;
  int64_t failures_synced_ = 0;  // of writes and rows, as of the last sync()
  std::unique_ptr<FileIo> io_;   // the first to go
};

}  // namespace store
