#include "apps/kv_report.h"

#include <fmt/format.h>

#include "base/sizes.h"

namespace apps {
namespace {

double per(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

}  // namespace

nlohmann::ordered_json kv_json(const core::KvCounters& kv) {
  return {{"pages_scored", kv.pages_scored},
          {"selections", kv.selections},
          {"selections_reused", kv.selections_reused},
          {"pages_selected", kv.pages_selected},
          {"pages_sealed", kv.pages_sealed},
          {"pages_quantised", kv.pages_quantised},
          {"pages_missed", kv.pages_missed},
          {"pages_loaded", kv.pages_loaded},
          {"pages_evicted", kv.pages_evicted},
          {"pages_scratch", kv.pages_scratch},
          {"pages_saved", kv.pages_saved},
          {"rows_saved", kv.rows_saved},
          {"save_waits", kv.save_waits},
          {"bytes_loaded", kv.bytes_loaded},
          {"bytes_gathered", kv.bytes_gathered},
          {"bytes_saved", kv.bytes_saved},
          {"load_us", kv.load_us},
          {"save_us", kv.save_us},
          {"layers_segmented", kv.layers_segmented},
          {"steps_replayed", kv.steps_replayed},
          {"disk_pages_written", kv.disk_pages_written},
          {"disk_pages_read", kv.disk_pages_read},
          {"disk_failures", kv.disk_failures},
          {"device_bytes_peak", kv.device_bytes_peak}};
}

nlohmann::ordered_json sizes_json(const engine::ResolvedSizes& s) {
  return {{"max_num_seqs", s.max_num_seqs},
          {"context_max", s.context_max},
          {"page_tokens", s.page_tokens},
          {"num_blocks", s.num_blocks},
          {"block_bytes", s.block_bytes},
          {"num_frames", s.num_frames},
          {"frame_bytes", s.frame_bytes},
          {"num_rings", s.num_rings},
          {"ring_bytes", s.ring_bytes},
          {"stats_bytes", s.stats_bytes},
          {"scratch_bytes", s.scratch_bytes},
          {"tables_bytes", s.tables_bytes},
          {"activation_bytes", s.activation_bytes},
          {"workspace_bytes", s.workspace_bytes},
          {"staging_bytes", s.staging_bytes},
          {"runtime_bytes", s.runtime_bytes},
          {"weights_bytes", s.weights_bytes},
          {"device_bytes", s.device_bytes},
          {"host_bytes", s.host_bytes}};
}

std::string kv_report(const core::KvCounters& kv) {
  std::string text;
  if (kv.selections > 0) {
    text += fmt::format("{} selections of {:.1f} pages, {} of them used again; {} pages scored\n",
                        kv.selections + kv.selections_reused,
                        per(kv.pages_selected, kv.selections + kv.selections_reused),
                        kv.selections_reused, kv.pages_scored);
  }
  if (kv.pages_saved + kv.pages_loaded > 0) {
    text += fmt::format(
        "{:.2f} % of the selected pages were not on the device; {} pages ({}) loaded, {} ({}) "
        "saved, {} evicted\n",
        100 * per(kv.pages_missed, kv.pages_selected), kv.pages_loaded,
        base::format_bytes(kv.bytes_loaded), kv.pages_saved, base::format_bytes(kv.bytes_saved),
        kv.pages_evicted);
  }
  if (kv.layers_segmented > 0) {
    text += fmt::format("{} layers of prompts computed one at a time\n", kv.layers_segmented);
  }
  if (kv.steps_replayed > 0) {
    text += fmt::format("{} steps replayed as CUDA graphs\n", kv.steps_replayed);
  }
  if (kv.disk_pages_written + kv.disk_pages_read > 0) {
    text +=
        fmt::format("disk: {} pages written, {} read\n", kv.disk_pages_written, kv.disk_pages_read);
  }
  return text;
}

}  // namespace apps
