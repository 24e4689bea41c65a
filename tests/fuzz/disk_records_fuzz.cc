// The disk tier's files, those set aside too, changed by anyone: the first byte chooses how the
// files were left, the rest are changes to them. Whatever they are, the tier opens, its books
// agree, and what it gives back is what was written, unless a record was forged down to its
// checksum; then it takes new records. Nothing crashes, runs on or takes more memory than the
// files' sizes warrant.
//
// Changes, until the input ends: [what, offset (3 bytes), size (2 bytes), bytes]. The low bits of
// `what` choose the file, kTruncate cuts it off at the offset.
#include <stdlib.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "kv/disk_catalog.h"
#include "store/disk_index.h"
#include "store/disk_record.h"
#include "store/disk_store.h"

namespace {

namespace fs = std::filesystem;

constexpr int32_t kTokens = 4;
constexpr int64_t kPayloadBytes = 256;
constexpr size_t kRecordBytes = store::kRecordHeaderBytes + kPayloadBytes;
constexpr uint64_t kRecords = 4;
constexpr size_t kFileBytesMax = 1 << 17;
constexpr int kChangesMax = 64;
constexpr uint8_t kLeftRunning = 1;  // of the first byte: the former process was killed
constexpr uint8_t kTruncate = 8;     // of a change
constexpr size_t kNumFiles = 8, kPages = 2;

using Files = std::array<std::string, kNumFiles>;

// What record r holds in the files that are changed; what is written afterwards has r >= kRecords.
std::array<core::TokenId, kTokens> tokens_of(uint64_t r) {
  const auto t = static_cast<core::TokenId>(r);
  return {100 + t, 200 + t, 300 + t, 400 + t};
}
std::byte payload_byte(uint64_t r, size_t i) {
  return static_cast<std::byte>(r * 31 + i);
}
core::DiskEntry entry_of(uint64_t r, std::span<const core::TokenId> tokens) {
  return {.record = r % kRecords,
          .key = 1000 + r,
          .check = 2000 + r,
          .parent_key = 3000 + r,
          .generated = r % 2 == 1,
          .tokens = tokens};
}

class Folder {
 public:
  Folder() {
    const bool in_memory = fs::is_directory("/dev/shm");
    path_ = (in_memory ? fs::path("/dev/shm") : fs::temp_directory_path()) / "disk_fuzz_XXXXXX";
    CHECK(::mkdtemp(path_.data()) != nullptr, "no folder at {}", path_);
    const store::Digest owner = store::digest(identity().text());
    const std::string aside = fmt::format("aside-{:016x}{:016x}/", owner.high, owner.low);
    names_ = {"index.sqlite",         "index.sqlite-wal",      "pages.spillway",
              "index.sqlite-journal", "index.sqlite-shm",      "owner",
              aside + "index.sqlite", aside + "pages.spillway"};
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(size_t i) const { return path_ + "/" + names_[i]; }
  store::DiskIndexIdentity identity() const {
    return {options().fingerprint, kPayloadBytes, kTokens};
  }
  store::DiskStoreOptions options() const {
    const int64_t stride = store::record_stride_bytes(kPayloadBytes);
    return {.path = path_,
            .capacity_bytes = static_cast<int64_t>(kRecords) * stride,
            .payload_bytes = kPayloadBytes,
            .page_tokens = kTokens,
            .fingerprint = "fuzz",
            .buffers_bytes = 4 * stride,
            .use_io_uring = false};
  }
  Files read() const {
    Files files;
    for (size_t i = 0; i < files.size(); ++i) {
      std::ifstream in(file(i), std::ios::binary);
      files[i].assign(std::istreambuf_iterator<char>(in), {});
    }
    return files;
  }
  // Nothing else is left. An empty file is none.
  void replace(const Files& files) const {
    for (const auto& entry : fs::directory_iterator(path_)) fs::remove_all(entry.path());
    for (size_t i = 0; i < files.size(); ++i) {
      if (files[i].empty()) continue;
      fs::create_directories(fs::path(file(i)).parent_path());
      std::ofstream(file(i), std::ios::binary) << files[i];
    }
  }

 private:
  std::string path_;
  std::array<std::string, kNumFiles> names_;
};

// The payload of a record; empty: not to be had.
std::vector<std::byte> read(store::DiskStore& store, const core::DiskEntry& entry) {
  std::vector<std::byte> payload;
  bool done = false;
  store.read(core::BlockId{0}, entry);
  while (!done) {
    store.poll(1'000'000, [&](const store::DiskStore::Read& read) {
      payload.assign(read.payload.begin(), read.payload.end());
      done = true;
    });
  }
  return payload;
}

void fill_payload(std::span<std::byte> payload, uint64_t r) {
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = payload_byte(r, i);
}
bool is_payload(std::span<const std::byte> payload, uint64_t r) {
  for (size_t i = 0; i < payload.size(); ++i) {
    if (payload[i] != payload_byte(r, i)) return false;
  }
  return std::ssize(payload) == kPayloadBytes;
}

// The files of a tier that is full: as a process leaves them that ends, and one that is killed.
struct Bases {
  Files closed, running;
};
Bases make_bases(const Folder& folder) {
  const store::DiskStoreOptions options = folder.options();
  Bases bases;
  {
    bool empty = false;
    auto index = store::DiskIndex::open(folder.file(0), folder.identity(), &empty).value();
    for (uint64_t r = 0; r < kRecords; ++r) {
      const auto tokens = tokens_of(r);
      const std::array changes{store::IndexChange::put(entry_of(r, tokens))};
      CHECK(index.apply(changes).ok());
    }
    bases.running = folder.read();
  }
  bases.closed = folder.read();
  const auto stride = static_cast<size_t>(store::record_stride_bytes(kPayloadBytes));
  std::string pages(kRecords * stride, '\0');
  for (uint64_t r = 0; r < kRecords; ++r) {
    const auto record = std::as_writable_bytes(std::span(pages)).subspan(r * stride, kRecordBytes);
    fill_payload(record.subspan(store::kRecordHeaderBytes), r);
    const auto tokens = tokens_of(r);
    store::seal_record(record, entry_of(r, tokens), store::digest(options.fingerprint));
  }
  bases.closed[kPages] = bases.running[kPages] = pages;
  return bases;
}

class Changes {
 public:
  explicit Changes(std::string_view bytes) : rest_(bytes) {}
  bool next(Files& files) {
    if (rest_.size() < 6) return false;
    const auto what = static_cast<uint8_t>(rest_[0]);
    const size_t offset = number(1, 3), size = std::min(number(4, 2), rest_.size() - 6);
    std::string& file = files[what % 8 % files.size()];
    if ((what & kTruncate) != 0) file.resize(std::min(file.size(), offset));
    if (size > 0 && offset + size <= kFileBytesMax) {
      file.resize(std::max(file.size(), offset + size));
      std::memcpy(file.data() + offset, rest_.data() + 6, size);
    }
    rest_.remove_prefix(6 + size);
    return true;
  }

 private:
  size_t number(size_t at, size_t bytes) const {
    size_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(rest_[at + i]);
    return value;
  }
  std::string_view rest_;
};

// The record's checksum is not the one it was written with.
bool is_forged(const Files& files, const Files& base, uint64_t record) {
  const size_t at = record * static_cast<size_t>(store::record_stride_bytes(kPayloadBytes));
  constexpr size_t kBytes = sizeof(store::Digest);
  return files[kPages].size() >= at + kBytes &&
         files[kPages].compare(at, kBytes, base[kPages], at, kBytes) != 0;
}

void use(const Folder& folder, const Files& files, const Files& base) {
  auto opened = store::DiskStore::open(folder.options());
  CHECK(opened.ok(), "{}", opened.error().message);
  store::DiskStore& store = **opened;
  kv::DiskCatalog catalog({.num_records = store.num_records(), .page_tokens = kTokens});
  int64_t entries = 0;
  store.take_entries([&](const core::DiskEntry& entry) {
    CHECK(entry.record < kRecords && std::ssize(entry.tokens) == kTokens);
    ++entries;
    catalog.restore(entry);
  });
  CHECK(entries <= static_cast<int64_t>(3 * kFileBytesMax / sizeof(core::TokenId) / kTokens));
  catalog.check_integrity();
  for (uint64_t r = 0; r < kRecords; ++r) {
    const auto tokens = tokens_of(r);
    const core::DiskEntry expected = entry_of(r, tokens);
    const std::vector<std::byte> payload = read(store, expected);
    CHECK(payload.empty() || is_payload(payload, r) || is_forged(files, base, r));
    if (const auto record = catalog.find(expected)) read(store, catalog.entry(*record));
  }
  const auto tokens = tokens_of(kRecords);
  core::DiskEntry fresh = entry_of(kRecords, tokens);
  if (catalog.find(fresh)) return;
  fresh.record = catalog.allocate(fresh).value();
  catalog.check_integrity();
  fill_payload(store.next_payload(), kRecords);
  store.write(fresh);
  CHECK(is_payload(read(store, fresh), kRecords));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = base::set_log_level("off").ok();
  CHECK(quiet);
  if (size == 0) return 0;
  static const Folder folder;
  static const Bases bases = make_bases(folder);
  const Files& base = (data[0] & kLeftRunning) != 0 ? bases.running : bases.closed;
  Files files = base;
  Changes changes({reinterpret_cast<const char*>(data) + 1, size - 1});
  for (int i = 0; i < kChangesMax && changes.next(files); ++i) {
  }
  folder.replace(files);
  use(folder, files, base);
  const auto again = store::DiskStore::open(folder.options());
  CHECK(again.ok(), "{}", again.error().message);
  return 0;
}
