// What happened to cached blocks, for indexes outside the process that want to know which prefixes
// are here: plain data from the engine to whoever publishes it.
//
// A block is named by its key in the prefix index, which stands for the whole token sequence up to
// the block's end, the model and the salt. A batch holds what one step changed, in an order that a
// reader can apply as it comes: what goes before what comes, and a block's parent before the block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"

namespace core {

// Where all pages of a block are: frames of the device tier, homes of the host tier, a record.
enum class KvMedium : uint8_t { kDevice, kHost, kDisk };

struct KvEvent {
  enum class Kind : uint8_t {
    kStored,   // the block is there now
    kRemoved,  // it is there no longer; in other media it may be
    kCleared,  // forget everything: what is still there follows as stored
  };
  Kind kind = Kind::kStored;
  KvMedium medium = KvMedium::kDevice;
  uint64_t key = 0;
  // Of a stored one. has_parent false: the block begins its sequence.
  uint64_t parent_key = 0;
  bool has_parent = false;
  uint32_t salt_bytes = 0;  // of a block that begins a salted sequence; 0: no salt
};

struct KvEventBatch {
  int32_t page_tokens = 0;  // P
  std::vector<KvEvent> events;
  std::vector<TokenId> tokens;  // (stored events, P) in their order
  std::string salts;            // of the events with salt_bytes, in their order

  void clear() {
    events.clear();
    tokens.clear();
    salts.clear();
  }
};

// Who takes batches. Thread: the engine's, whom it never holds up: what finds no room stays in the
// engine's books and comes with a later batch.
class KvEventSink {
 public:
  virtual ~KvEventSink() = default;

  // Events that can be taken now.
  virtual int32_t room() = 0;
  // REQUIRES: no more than room() events. The batch is the caller's again afterwards.
  virtual void put(const KvEventBatch& batch) = 0;
  // Somebody has missed so much that all must be said anew: true once for each time.
  virtual bool take_restate() = 0;
};

}  // namespace core
