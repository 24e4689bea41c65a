// Room in a ring of fixed size for what is on its way.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace store::cuda {

// Contiguous places in a ring, by rising positions: taken at the head, released in order.
class PlaceRing {
 public:
  explicit PlaceRing(int64_t size) : size_(size) {}
  // Where `count` (at most size()) fit now, skipping the end of the ring where they would wrap;
  // nothing is taken and false returned while they do not.
  bool try_take(int64_t count, int64_t* place);
  int64_t head() const { return head_; }
  void release_through(int64_t head) { tail_ = std::max(tail_, head); }
  int64_t size() const { return size_; }

 private:
  int64_t size_ = 0, head_ = 0, tail_ = 0;
};

inline bool PlaceRing::try_take(int64_t count, int64_t* place) {
  CHECK(count <= size_, "{} of a ring of {}", count, size_);
  int64_t begin = head_;
  if (count > 0 && begin % size_ + count > size_) begin += size_ - begin % size_;
  if (begin + count - tail_ > size_ && tail_ != head_) return false;
  *place = size_ == 0 ? 0 : begin % size_;
  if (tail_ == head_) tail_ = begin;  // empty: what was skipped is nobody's
  head_ = begin + count;
  return true;
}

}  // namespace store::cuda
