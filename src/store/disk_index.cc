#include "store/disk_index.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"

namespace store {
namespace {

// Raised when the tables or the meaning of their columns change: an older file starts empty.
constexpr int kSchema = 1;

// As SQLite keeps them in its schema.
constexpr const char* kIdentityTable =
    "CREATE TABLE identity (name TEXT PRIMARY KEY, value BLOB NOT NULL)";
constexpr const char* kRecordsTable =
    "CREATE TABLE records (record INTEGER PRIMARY KEY, key INTEGER NOT NULL,"
    " content INTEGER NOT NULL, parent INTEGER NOT NULL, generated INTEGER NOT NULL,"
    " used INTEGER NOT NULL, tokens BLOB NOT NULL)";

// Of one value or one statement.
constexpr int kValueBytesMax = 1 << 20;
// Steps of SQLite's machine: opening takes a few hundred; a row takes fewer than it has bytes.
constexpr int64_t kStepsBase = 100'000;
constexpr int kStepsACheck = 1000;
// Far beyond what counting up reaches, far below what overflows.
constexpr int64_t kUsedMax = int64_t{1} << 62;

int64_t as_signed(uint64_t value) {
  return static_cast<int64_t>(value);
}

}  // namespace

std::string DiskIndexIdentity::text() const {
  return fmt::format("schema {}, record format {}, payload {}, P {}, {}", kSchema, kRecordFormat,
                     payload_bytes, page_tokens, fingerprint);
}

void DiskIndex::remove_files(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) std::remove((path + suffix).c_str());
}

IndexChange IndexChange::put(const core::DiskEntry& entry) {
  IndexChange change{.kind = Kind::kPut, .entry = entry};
  std::ranges::copy(entry.tokens, change.tokens.begin());
  change.entry.tokens = {};
  return change;
}

void DiskIndex::Close::operator()(sqlite3* db) const {
  ::sqlite3_close_v2(db);
}
void DiskIndex::Close::operator()(sqlite3_stmt* statement) const {
  ::sqlite3_finalize(statement);
}
DiskIndex::DiskIndex(DiskIndex&&) noexcept = default;
DiskIndex& DiskIndex::operator=(DiskIndex&&) noexcept = default;
DiskIndex::~DiskIndex() = default;

base::Result<DiskIndex> DiskIndex::open(const std::string& path, const DiskIndexIdentity& identity,
                                        bool* started_empty) {
  *started_empty = false;
  for (int attempt = 0;; ++attempt) {
    base::Result<DiskIndex> index = open_file(path);
    std::string why = index.ok() ? "" : index.error().message;
    if (index.ok()) {
      const base::Result<bool> matches = index->prepare(identity);
      if (matches.ok() && *matches) {
        index->page_tokens_ = identity.page_tokens;
        return index;
      }
      why = matches.ok() ? "it is of another model or page configuration" : matches.error().message;
    }
    if (attempt > 0) {
      return base::error(base::Code::kIo, "cannot make the index of the disk tier at {}: {}", path,
                         why);
    }
    LOG_WARN("the disk tier starts empty; the index at {} cannot serve: {}", path, why);
    *started_empty = true;
    index = base::error(base::Code::kInternal, "closed");  // before its files go
    remove_files(path);
  }
}

base::Result<DiskIndex> DiskIndex::open_file(const std::string& path) {
  DiskIndex index;
  sqlite3* db = nullptr;
  const int status =
      ::sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  index.db_.reset(db);
  if (status != SQLITE_OK) return index.failure("opening it");
  for (const int option : {SQLITE_DBCONFIG_ENABLE_TRIGGER, SQLITE_DBCONFIG_ENABLE_VIEW,
                           SQLITE_DBCONFIG_TRUSTED_SCHEMA}) {
    ::sqlite3_db_config(db, option, 0, nullptr);
  }
  ::sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  ::sqlite3_limit(db, SQLITE_LIMIT_LENGTH, kValueBytesMax);
  index.path_ = path;
  index.limit_work(true);
  return index;
}

// What a file makes SQLite do is bounded by its own size.
void DiskIndex::limit_work(bool on) {
  steps_left_ = std::make_unique<int64_t>(kStepsBase);
  for (const char* suffix : {"", "-wal"}) {
    std::error_code none;
    const auto bytes = std::filesystem::file_size(path_ + suffix, none);
    if (!none) *steps_left_ += static_cast<int64_t>(bytes);
  }
  const auto count = [](void* left) -> int {
    return (*static_cast<int64_t*>(left) -= kStepsACheck) < 0;
  };
  ::sqlite3_progress_handler(db_.get(), on ? kStepsACheck : 0, count, steps_left_.get());
}

// Makes them in a new file. Errors: kIo when others are there.
base::Result<void> DiskIndex::check_tables() {
  const auto is_ours = [](const std::string& sql) {
    return sql.empty() || sql == kIdentityTable || sql == kRecordsTable;
  };
  int64_t found = 0;
  {
    // An index without a text is SQLite's own, of the primary key.
    ASSIGN_OR_RETURN(
        const Statement read,
        compile("SELECT coalesce(sql, iif(type = 'index', '', '?')) FROM sqlite_schema"));
    int status = SQLITE_ROW;
    while ((status = ::sqlite3_step(read.get())) == SQLITE_ROW) {
      const auto* sql = reinterpret_cast<const char*>(::sqlite3_column_text(read.get(), 0));
      if (sql == nullptr || !is_ours(sql) || ++found > 3)
        return base::error(base::Code::kIo, "its tables are not those of an index");
    }
    if (status != SQLITE_DONE) return failure("reading its tables");
  }
  if (found == 3) return {};
  if (found != 0) return base::error(base::Code::kIo, "some of its tables are missing");
  return execute(fmt::format("BEGIN IMMEDIATE; {}; {}; COMMIT", kIdentityTable, kRecordsTable));
}

// False: the file is another identity's. Compiles the statements.
base::Result<bool> DiskIndex::prepare(const DiskIndexIdentity& identity) {
  RETURN_IF_ERROR(execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"));
  RETURN_IF_ERROR(check_tables());
  const std::string text = identity.text();
  ASSIGN_OR_RETURN(const Statement write,
                   compile("INSERT OR IGNORE INTO identity VALUES ('identity', ?1)"));
  ::sqlite3_bind_text(write.get(), 1, text.c_str(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
  RETURN_IF_ERROR(step(write.get()));
  ASSIGN_OR_RETURN(const Statement read,
                   compile("SELECT value FROM identity WHERE name = 'identity'"));
  if (::sqlite3_step(read.get()) != SQLITE_ROW) return failure("reading its identity");
  const auto* found = reinterpret_cast<const char*>(::sqlite3_column_text(read.get(), 0));
  if (found == nullptr || text != found) return false;

  ASSIGN_OR_RETURN(put_, compile("INSERT OR REPLACE INTO records VALUES (?1,?2,?3,?4,?5,?6,?7)"));
  ASSIGN_OR_RETURN(touch_, compile("UPDATE records SET used = ?2 WHERE record = ?1"));
  ASSIGN_OR_RETURN(forget_, compile("DELETE FROM records WHERE record = ?1"));
  ASSIGN_OR_RETURN(const Statement last, compile("SELECT coalesce(max(used), 0) FROM records"));
  if (::sqlite3_step(last.get()) != SQLITE_ROW) return failure("reading it");
  used_ = ::sqlite3_column_int64(last.get(), 0);
  if (used_ < 0 || used_ > kUsedMax) {
    return base::error(base::Code::kIo, "its order of use says {}, at most {} can be", used_,
                       kUsedMax);
  }
  return true;
}

base::Result<void> DiskIndex::read_all(uint64_t num_records,
                                       const std::function<void(const core::DiskEntry&)>& row) {
  limit_work(true);
  std::vector<int64_t> misfits;
  ASSIGN_OR_RETURN(const Statement rows,
                   compile("SELECT record, key, content, parent, generated, tokens FROM records"
                           " ORDER BY used"));
  std::vector<core::TokenId> tokens(static_cast<size_t>(page_tokens_));
  int status = SQLITE_ROW;
  while ((status = ::sqlite3_step(rows.get())) == SQLITE_ROW) {
    const auto column = [&](int i) { return ::sqlite3_column_int64(rows.get(), i); };
    const int64_t record = column(0);
    const void* blob = ::sqlite3_column_blob(rows.get(), 5);
    const auto bytes = static_cast<size_t>(::sqlite3_column_bytes(rows.get(), 5));
    if (record < 0 || static_cast<uint64_t>(record) >= num_records || blob == nullptr ||
        bytes != tokens.size() * sizeof(core::TokenId)) {
      misfits.push_back(record);
      continue;
    }
    std::memcpy(tokens.data(), blob, bytes);
    row({.record = static_cast<uint64_t>(record),
         .key = static_cast<uint64_t>(column(1)),
         .check = static_cast<uint64_t>(column(2)),
         .parent_key = static_cast<uint64_t>(column(3)),
         .generated = column(4) != 0,
         .tokens = tokens});
  }
  if (status != SQLITE_DONE) return failure("reading its records");
  for (const int64_t record : misfits) {
    ::sqlite3_bind_int64(forget_.get(), 1, record);
    RETURN_IF_ERROR(step(forget_.get()));
  }
  limit_work(false);
  return {};
}

base::Result<void> DiskIndex::apply(std::span<const IndexChange> changes) {
  RETURN_IF_ERROR(execute("BEGIN IMMEDIATE"));
  for (const IndexChange& change : changes) {
    if (base::Result<void> applied = apply_one(change); !applied.ok()) {
      (void)execute("ROLLBACK").ok();  // the first error is the one to tell
      return applied;
    }
  }
  return execute("COMMIT");
}

base::Result<void> DiskIndex::apply_one(const IndexChange& change) {
  const core::DiskEntry& entry = change.entry;
  sqlite3_stmt* const statement = change.kind == IndexChange::Kind::kPut     ? put_.get()
                                  : change.kind == IndexChange::Kind::kTouch ? touch_.get()
                                                                             : forget_.get();
  ::sqlite3_bind_int64(statement, 1, as_signed(entry.record));
  if (change.kind == IndexChange::Kind::kTouch) ::sqlite3_bind_int64(statement, 2, ++used_);
  if (change.kind == IndexChange::Kind::kPut) {
    ::sqlite3_bind_int64(statement, 2, as_signed(entry.key));
    ::sqlite3_bind_int64(statement, 3, as_signed(entry.check));
    ::sqlite3_bind_int64(statement, 4, as_signed(entry.parent_key));
    ::sqlite3_bind_int64(statement, 5, entry.generated);
    ::sqlite3_bind_int64(statement, 6, ++used_);
    const size_t bytes = static_cast<size_t>(page_tokens_) * sizeof(core::TokenId);
    ::sqlite3_bind_blob(statement, 7, change.tokens.data(), static_cast<int>(bytes), SQLITE_STATIC);
  }
  return step(statement);
}

base::Result<void> DiskIndex::execute(const std::string& sql) {
  if (::sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK)
    return failure("writing to it");
  return {};
}

base::Result<DiskIndex::Statement> DiskIndex::compile(const char* sql) {
  sqlite3_stmt* statement = nullptr;
  if (::sqlite3_prepare_v2(db_.get(), sql, -1, &statement, nullptr) != SQLITE_OK)
    return failure("using its tables");
  return Statement(statement);
}

base::Result<void> DiskIndex::step(sqlite3_stmt* statement) {
  const int status = ::sqlite3_step(statement);
  ::sqlite3_reset(statement);
  if (status != SQLITE_DONE && status != SQLITE_ROW) return failure("changing it");
  return {};
}

base::Error DiskIndex::failure(std::string_view doing) const {
  if (db_ != nullptr && ::sqlite3_errcode(db_.get()) == SQLITE_INTERRUPT)
    return base::error(base::Code::kIo, "{}: more work than its size warrants", doing);
  return base::error(base::Code::kIo, "{}: {}", doing,
                     db_ == nullptr ? "no memory" : ::sqlite3_errmsg(db_.get()));
}

}  // namespace store
