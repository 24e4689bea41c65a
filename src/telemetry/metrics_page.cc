#include "telemetry/metrics_page.h"

#include <prometheus/text_serializer.h>

#include <sstream>

namespace telemetry {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

void fill(ClientMetric& metric, const Histogram& histogram) {
  metric.histogram.sample_count = histogram.count();
  metric.histogram.sample_sum = histogram.sum();
  uint64_t cumulative = 0;
  for (size_t i = 0; i < histogram.bounds().size(); ++i) {
    cumulative += histogram.counts()[i];
    metric.histogram.bucket.push_back({cumulative, histogram.bounds()[i]});
  }
}

void MetricsPage::gauge(const char* name, const char* help, double value) {
  add(name, help, MetricType::Gauge).gauge.value = value;
}

void MetricsPage::counter(const char* name, const char* help, int64_t value) {
  add(name, help, MetricType::Counter).counter.value = static_cast<double>(value);
}

void MetricsPage::histogram(const char* name, const char* help, const Histogram& histogram) {
  fill(add(name, help, MetricType::Histogram), histogram);
}

MetricFamily& MetricsPage::family(const char* name, const char* help, MetricType type) {
  MetricFamily& made = families_.emplace_back();
  made.name = name;
  made.help = help;
  made.type = type;
  return made;
}

ClientMetric& MetricsPage::metric(MetricFamily& family, const Labels& more) {
  ClientMetric& made = family.metric.emplace_back();
  made.label = labels_;
  made.label.insert(made.label.end(), more.begin(), more.end());
  return made;
}

void MetricsPage::gauges(const char* name, const char* help, const char* label,
                         const std::vector<std::pair<const char*, double>>& values) {
  MetricFamily& made = family(name, help, MetricType::Gauge);
  for (const auto& [key, value] : values) metric(made, {{label, key}}).gauge.value = value;
}

void MetricsPage::counters(const char* name, const char* help, const char* label,
                           const std::vector<std::pair<const char*, double>>& values) {
  MetricFamily& made = family(name, help, MetricType::Counter);
  for (const auto& [key, value] : values) metric(made, {{label, key}}).counter.value = value;
}

std::string MetricsPage::text() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families_);
  return out.str();
}

}  // namespace telemetry
