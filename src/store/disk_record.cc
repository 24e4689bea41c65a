#include "store/disk_record.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace store {
namespace {

constexpr int64_t kFilePageBytes = 4096;
constexpr char kMagic[8] = {'S', 'P', 'W', 'P', 'A', 'G', 'E', 'S'};

// As it lies on disk, in the byte order of this machine: the files are never moved to another.
struct Header {
  Digest checksum;  // of what follows, to the end of the record
  std::array<char, 8> magic{};
  uint32_t format = 0;
  uint32_t num_tokens = 0;
  uint64_t record_bytes = 0;
  Digest fingerprint;
  uint64_t record = 0, key = 0, check = 0, parent_key = 0;
  uint64_t generated = 0;
  std::array<core::TokenId, kRecordTokensMax> tokens{};
};
static_assert(sizeof(Header) <= kRecordHeaderBytes);
static_assert(std::is_trivially_copyable_v<Header>);

Digest digest_bytes(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

Digest checksum_of(std::span<const std::byte> record) {
  return digest_bytes(record.subspan(sizeof(Digest)));
}

}  // namespace

Digest digest(std::string_view text) {
  return digest_bytes(std::as_bytes(std::span(text)));
}

int64_t record_stride_bytes(int64_t payload_bytes) {
  const int64_t bytes = kRecordHeaderBytes + payload_bytes;
  return (bytes + kFilePageBytes - 1) / kFilePageBytes * kFilePageBytes;
}

void seal_record(std::span<std::byte> record, const core::DiskEntry& entry,
                 const Digest& fingerprint) {
  CHECK(std::ssize(record) >= kRecordHeaderBytes && entry.tokens.size() <= kRecordTokensMax,
        "{} bytes, {} tokens", record.size(), entry.tokens.size());
  Header header;
  std::ranges::copy(kMagic, header.magic.begin());
  header.format = kRecordFormat;
  header.num_tokens = static_cast<uint32_t>(entry.tokens.size());
  header.record_bytes = record.size();
  header.fingerprint = fingerprint;
  header.record = entry.record;
  header.key = entry.key;
  header.check = entry.check;
  header.parent_key = entry.parent_key;
  header.generated = entry.generated;
  std::ranges::copy(entry.tokens, header.tokens.begin());
  std::memset(record.data(), 0, kRecordHeaderBytes);
  std::memcpy(record.data(), &header, sizeof(header));
  header.checksum = checksum_of(record);
  std::memcpy(record.data(), &header.checksum, sizeof(header.checksum));
}

base::Result<void> check_record(std::span<const std::byte> record, const core::DiskEntry& entry,
                                const Digest& fingerprint) {
  const auto refuse = [&](std::string_view what) {
    return base::error(base::Code::kIo, "record {} of the disk tier: {}", entry.record, what);
  };
  if (std::ssize(record) < kRecordHeaderBytes) return refuse("shorter than its header");
  Header header;
  std::memcpy(&header, record.data(), sizeof(header));
  if (!std::ranges::equal(header.magic, kMagic)) return refuse("no record");
  if (header.format != kRecordFormat) return refuse("another format");
  if (header.record_bytes != record.size()) return refuse("another size");
  if (header.fingerprint != fingerprint) return refuse("another model or page configuration");
  if (header.record != entry.record) return refuse("in another's place");
  if (header.key != entry.key || header.check != entry.check ||
      header.parent_key != entry.parent_key || (header.generated != 0) != entry.generated ||
      header.num_tokens != entry.tokens.size() ||
      !std::equal(entry.tokens.begin(), entry.tokens.end(), header.tokens.begin())) {
    return refuse("other tokens");
  }
  if (header.checksum != checksum_of(record)) return refuse("the checksum does not hold");
  return {};
}

}  // namespace store
