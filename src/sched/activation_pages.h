// The activation pages that no prompt holds: P tokens of the residual stream each, which wait
// between the layers of a layer-segmented prompt. Engine's thread.
#pragma once

#include <cstdint>
#include <vector>

namespace sched {

class ActivationPages {
 public:
  // Pages [0, count), all free.
  explicit ActivationPages(int32_t count);

  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }

  // Appends `count` pages to `pages`: those that follow each other where that many do, since exec/
  // computes such a prompt in place and copies every page of another twice a layer.
  // REQUIRES: count <= num_free().
  void take(int32_t count, std::vector<int32_t>* pages);
  // Takes them all from `pages`.
  void put(std::vector<int32_t>* pages);

  // Ascending. For tests.
  const std::vector<int32_t>& free() const { return free_; }

 private:
  std::vector<int32_t> free_;  // ascending
};

}  // namespace sched
