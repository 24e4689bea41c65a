// Families of metrics on their way to Prometheus text, under the labels that every one carries.
//
// Label values may come from outside: they are escaped. Thread: one.
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/fixed_histogram.h"
#include "telemetry/histogram.h"

namespace telemetry {

class MetricsPage {
 public:
  using Labels = std::vector<prometheus::ClientMetric::Label>;

  explicit MetricsPage(const std::string& model_name)
      : labels_{{"engine", "0"}, {"model_name", model_name}} {}

  void gauge(const char* name, const char* help, double value);
  void counter(const char* name, const char* help, int64_t value);
  void histogram(const char* name, const char* help, const Histogram& histogram);
  // `units`: how many of what was observed make one of what is told.
  template <int64_t... kUpper>
  void histogram(const char* name, const char* help,
                 const core::FixedHistogram<kUpper...>& histogram, double units = 1) {
    prometheus::ClientMetric& metric = add(name, help, prometheus::MetricType::Histogram);
    metric.histogram.sample_sum = static_cast<double>(histogram.sum) / units;
    for (size_t i = 0; i < histogram.counts.size(); ++i) {
      metric.histogram.sample_count += histogram.counts[i];
      if (i == histogram.kBounds.size()) break;
      metric.histogram.bucket.push_back(
          {metric.histogram.sample_count, static_cast<double>(histogram.kBounds[i]) / units});
    }
  }

  // A family whose metrics are added one by one with further labels. Borrowed until the next
  // family.
  prometheus::MetricFamily& family(const char* name, const char* help, prometheus::MetricType type);
  prometheus::ClientMetric& metric(prometheus::MetricFamily& family, const Labels& more = {});
  // One family with a metric for each value of one further label.
  void gauges(const char* name, const char* help, const char* label,
              const std::vector<std::pair<const char*, double>>& values);
  void counters(const char* name, const char* help, const char* label,
                const std::vector<std::pair<const char*, double>>& values);

  // Text format 0.0.4.
  std::string text() const;

 private:
  prometheus::ClientMetric& add(const char* name, const char* help, prometheus::MetricType type) {
    return metric(family(name, help, type));
  }

  Labels labels_;
  std::vector<prometheus::MetricFamily> families_;
};

void fill(prometheus::ClientMetric& metric, const Histogram& histogram);

}  // namespace telemetry
