// How many lines of the log requests may take that are refused before a handler has them.
//
// Anybody can send those, with a key or without, so a flood of them must not become one of lines:
// kBurst at once, then one in kIntervalUs. The next line that is written says how many were left
// out; metrics count all. Thread: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace api {

class RefusalLines {
 public:
  static constexpr int64_t kBurst = 20;
  static constexpr int64_t kIntervalUs = 1'000'000;

  // Nothing: leave this line out. Else write it; how many were left out before it. `now_us`: of a
  // clock that never goes back.
  std::optional<int64_t> take(int64_t now_us) {
    used_until_us_ = std::max(used_until_us_, now_us - kBurst * kIntervalUs);
    if (used_until_us_ + kIntervalUs > now_us) {
      ++left_out_;
      return std::nullopt;
    }
    used_until_us_ += kIntervalUs;
    return std::exchange(left_out_, 0);
  }

 private:
  int64_t used_until_us_ = INT64_MIN / 2;  // the time that the lines written so far have used up
  int64_t left_out_ = 0;
};

}  // namespace api
