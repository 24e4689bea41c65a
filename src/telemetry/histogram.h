// A histogram with fixed upper bounds, as Prometheus counts them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace telemetry {

class Histogram {
 public:
  // `bounds`: rising upper bounds, inclusive; one more bucket takes the rest.
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}

  void observe(double value) {
    size_t bucket = 0;
    while (bucket < bounds_.size() && value > bounds_[bucket]) ++bucket;
    ++counts_[bucket];
    ++count_;
    sum_ += value;
  }

  std::span<const double> bounds() const { return bounds_; }
  std::span<const uint64_t> counts() const { return counts_; }  // per bucket, not cumulative
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace telemetry
