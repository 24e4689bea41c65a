// Which homes have a save on its way, by address: what makes a load wait for the save before it.
//
// An open-addressing table that holds exactly the pages of the save queue that are not done, so it
// never grows: a home that is saved again keeps the position of its last save. Thread: one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"

namespace store {

class PendingHomes {
 public:
  // Of `pages_max` pages at most at a time.
  explicit PendingHomes(int32_t pages_max)
      : slots_(std::bit_ceil(static_cast<size_t>(pages_max) * 2)), mask_(slots_.size() - 1) {}

  // The queue position of the last save of `home`.
  std::optional<uint64_t> find(const std::byte* home) const {
    for (size_t at = hash(home);; at = after(at)) {
      if (slots_[at].home == home) return slots_[at].position;
      if (slots_[at].home == nullptr) return std::nullopt;
    }
  }

  void set(const std::byte* home, uint64_t position) {
    size_t at = hash(home);
    while (slots_[at].home != nullptr && slots_[at].home != home) at = after(at);
    if (slots_[at].home == nullptr) ++size_;
    DCHECK(size_ <= slots_.size() / 2);
    slots_[at] = {home, position};
  }

  // The save at `position` is done; a later one of the same home keeps its entry.
  void erase(const std::byte* home, uint64_t position) {
    size_t at = hash(home);
    while (slots_[at].home != home) {
      if (slots_[at].home == nullptr) return;
      at = after(at);
    }
    if (slots_[at].position != position) return;
    // Entries behind the gap move into it as far as their own place allows, so that find() may stop
    // at the first empty slot.
    for (size_t next = after(at); slots_[next].home != nullptr; next = after(next)) {
      const size_t from_own_place = (next - hash(slots_[next].home)) & mask_;
      if (from_own_place < ((next - at) & mask_)) continue;
      slots_[at] = slots_[next];
      at = next;
    }
    slots_[at] = {};
    --size_;
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    const std::byte* home = nullptr;
    uint64_t position = 0;
  };

  size_t after(size_t at) const { return (at + 1) & mask_; }
  // Fibonacci hashing: pages lie at multiples of their size, whose low bits say nothing.
  size_t hash(const std::byte* home) const {
    return (reinterpret_cast<uintptr_t>(home) * 0x9E3779B97F4A7C15u >> 32) & mask_;
  }

  std::vector<Slot> slots_;
  const size_t mask_;
  size_t size_ = 0;
};

}  // namespace store
