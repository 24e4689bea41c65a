#include "core/step.h"

#include <algorithm>

namespace core {

void KvCounters::add(const KvCounters& step) {
  pages_scored += step.pages_scored;
  selections += step.selections;
  selections_reused += step.selections_reused;
  pages_selected += step.pages_selected;
  pages_sealed += step.pages_sealed;
  pages_quantised += step.pages_quantised;
  pages_missed += std::clamp<int64_t>(step.pages_missed, 0, step.pages_selected);
  pages_loaded += step.pages_loaded;
  pages_evicted += step.pages_evicted;
  pages_scratch += step.pages_scratch;
  pages_saved += step.pages_saved;
  rows_saved += step.rows_saved;
  save_waits += step.save_waits;
  bytes_loaded += step.bytes_loaded;
  bytes_saved += step.bytes_saved;
  load_us += step.load_us;
  bytes_gathered += step.bytes_gathered;
  save_us += step.save_us;
  layers_segmented += step.layers_segmented;
  steps_replayed += step.steps_replayed;
  disk_pages_written += step.disk_pages_written;
  disk_pages_read += step.disk_pages_read;
  disk_failures += step.disk_failures;
  device_bytes_peak = std::max(device_bytes_peak, step.device_bytes_peak);
}

}  // namespace core
