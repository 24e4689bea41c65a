// A record of the disk tier: one block's pages behind a header that says whose they are.
//
//   [0, 512)                header: magic, format, sizes, the fingerprint's hash, the entry with
//   its
//                           tokens, and a checksum of all of the record but itself
//   [512, 512 + payload)    the block's pages, column by column
//
// A record is believed only when every field is what the reader expects and the checksum holds: a
// torn, stale, misplaced or foreign record reads as no record. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "core/step.h"

namespace store {

inline constexpr int64_t kRecordHeaderBytes = 512;
inline constexpr uint32_t kRecordFormat = 1;
inline constexpr int32_t kRecordTokensMax = 64;

// 128 bits of a text or of bytes.
struct Digest {
  uint64_t low = 0, high = 0;
  bool operator==(const Digest&) const = default;
};
Digest digest(std::string_view text);

// From one record to the next: whole pages of the file system.
int64_t record_stride_bytes(int64_t payload_bytes);

// Fills the header in front of a payload that is complete. REQUIRES: record.size() is header and
// payload; at most kRecordTokensMax tokens.
void seal_record(std::span<std::byte> record, const core::DiskEntry& entry,
                 const Digest& fingerprint);

// Errors: kIo saying what is not as expected.
base::Result<void> check_record(std::span<const std::byte> record, const core::DiskEntry& entry,
                                const Digest& fingerprint);

}  // namespace store
