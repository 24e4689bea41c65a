// A place to watch what rows select, or to say it: for traces and their replay, never in serving.
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"

namespace exec {

// A row of a sequence in one (layer, KV head).
struct SelectionPlace {
  core::SeqId seq{};
  int32_t position = 0, layer = 0, head = 0;
};

class SelectionTap {
 public:
  virtual ~SelectionTap() = default;

  // saw() must be told; else choose() alone is called, and a GPU may serve the tap.
  virtual bool watches() const { return true; }

  // The row attends to `pages`: rising, the last its own. Thread: the engine's, head by head and
  // row by row of a layer.
  virtual void saw(const SelectionPlace& place, std::span<const int32_t> pages) = 0;

  // Called where a row selects anew, with what it selected in `pages[0, count)`. May put others in
  // their place, under the same rules and at most `count` of them; returns how many there are now,
  // at least one. Thread: any, at once for different places.
  virtual int32_t choose(const SelectionPlace& place, int32_t* pages, int32_t count) const = 0;
};

}  // namespace exec
