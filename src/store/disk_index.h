// Which records of the disk tier hold what, so that it survives the process: one SQLite file.
//
// SQLite and not a log of our own: its recovery after a crash is what we would have to write and
// test. WAL with synchronous NORMAL: a power cut may lose the last transactions, never the file's
// consistency. A lost row is a record computed again; a row that names a record since overwritten
// is caught when the record is read (store/disk_record.h).
//
// The file is foreign bytes: one whose tables are not exactly ours (views, triggers, other columns)
// or that takes more work to read than its size warrants (pages that point in circles) is damaged.
// Thread: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "core/step.h"
#include "store/disk_record.h"

struct sqlite3;
struct sqlite3_stmt;

namespace store {

// What the files are for: with any other of these, they are started anew.
struct DiskIndexIdentity {
  std::string fingerprint;
  int64_t payload_bytes = 0;
  int32_t page_tokens = 0;  // P

  std::string text() const;
};

// One change, in the order they happened.
struct IndexChange {
  enum class Kind : uint8_t { kPut, kTouch, kForget };
  Kind kind = Kind::kPut;
  core::DiskEntry entry;  // its tokens stand below; kTouch, kForget: the record alone
  std::array<core::TokenId, kRecordTokensMax> tokens{};

  static IndexChange put(const core::DiskEntry& entry);
};

class DiskIndex {
 public:
  // Opens or creates the file. One that is damaged, of another format or another identity is
  // replaced by an empty one, with a warning that says why; *started_empty tells. Errors: kIo.
  static base::Result<DiskIndex> open(const std::string& path, const DiskIndexIdentity& identity,
                                      bool* started_empty);
  DiskIndex(DiskIndex&&) noexcept;
  DiskIndex& operator=(DiskIndex&&) noexcept;
  ~DiskIndex();

  // All rows, least recently used first; those that cannot be (a record outside
  // [0, num_records), a wrong number of tokens) are left out and deleted. Errors: kIo.
  base::Result<void> read_all(uint64_t num_records,
                              const std::function<void(const core::DiskEntry&)>& row);

  // Of a closed index.
  static void remove_files(const std::string& path);

  // All changes or none. Errors: kIo.
  base::Result<void> apply(std::span<const IndexChange> changes);

 private:
  struct Close {
    void operator()(sqlite3* db) const;
    void operator()(sqlite3_stmt* statement) const;
  };
  using Statement = std::unique_ptr<sqlite3_stmt, Close>;

  DiskIndex() = default;
  static base::Result<DiskIndex> open_file(const std::string& path);
  base::Result<bool> prepare(const DiskIndexIdentity& identity);
  base::Result<void> check_tables();
  void limit_work(bool on);
  base::Result<void> execute(const std::string& sql);
  base::Result<Statement> compile(const char* sql);
  base::Result<void> step(sqlite3_stmt* statement);
  base::Result<void> apply_one(const IndexChange& change);
  base::Error failure(std::string_view doing) const;

  std::string path_;
  std::unique_ptr<int64_t> steps_left_;  // SQLite's, while limited
  std::unique_ptr<sqlite3, Close> db_;
  Statement put_, touch_, forget_;
  int32_t page_tokens_ = 0;
  int64_t used_ = 0;  // rises with every put and touch
};

}  // namespace store
