// The last values of something that is measured, for percentiles of what is going on now.
//
// Buckets of a histogram are too coarse for people who watch: a single first token after 22 s would
// be shown as 30. Keeping a value is one store. Thread: one (the I/O thread).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

namespace telemetry {

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;  // by nearest rank: values that were measured
  size_t count = 0;
};

class RecentValues {
 public:
  // Keeps the last `capacity` values.
  explicit RecentValues(size_t capacity) : values_(capacity) {}

  void add(double value) { values_[num_added_++ % values_.size()] = static_cast<float>(value); }

  // Nothing before the first value. Sorts a copy: for looks, not for steps.
  std::optional<Percentiles> percentiles() const {
    const size_t count = std::min(num_added_, values_.size());
    if (count == 0) return std::nullopt;
    std::vector<float> sorted(values_.begin(), values_.begin() + static_cast<ptrdiff_t>(count));
    std::ranges::sort(sorted);
    const auto rank = [&](double q) {
      return sorted[static_cast<size_t>(std::ceil(q * static_cast<double>(count))) - 1];
    };
    return Percentiles{rank(0.5), rank(0.9), rank(0.99), count};
  }

 private:
  std::vector<float> values_;
  size_t num_added_ = 0;
};

}  // namespace telemetry
