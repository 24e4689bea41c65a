// Identities that must not be mixed up: each is its own type, so that swapping two arguments does
// not compile.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace core {

using TokenId = int32_t;

// A sequence for as long as the process runs; never reused.
enum class SeqId : uint64_t {};
// A request as the caller knows it; one request with n > 1 makes n sequences.
enum class RequestId : uint64_t {};
// A block: the L x Hk pages that hold the same P tokens of a sequence, an index into the pool.
// Blocks are what the host reserves, shares, caches and frees. With a host tier a block is a place
// in it, the HOME of its pages; without one it is a place in the device tier.
enum class BlockId : int32_t {};
// A row of frames: the i-th frame of every column of the device tier (core/kv_shape.h), an index
// into the device pool. The host hands frames out by rows; which pages a sequence's rows hold is
// decided a column at a time, on the device. Without a host tier block i lives in row i.
enum class FrameId : int32_t {};

constexpr int32_t index(BlockId id) {
  return static_cast<int32_t>(id);
}
constexpr int32_t index(FrameId id) {
  return static_cast<int32_t>(id);
}
constexpr uint64_t number(SeqId id) {
  return static_cast<uint64_t>(id);
}
constexpr uint64_t number(RequestId id) {
  return static_cast<uint64_t>(id);
}

}  // namespace core
