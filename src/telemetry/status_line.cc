#include "telemetry/status_line.h"

#include <fmt/format.h>

namespace telemetry {
namespace {

double percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

}  // namespace

std::string status_line(const core::EngineSnapshot& before, const core::EngineSnapshot& now,
                        double seconds) {
  const int64_t prompt = now.prompt_tokens - before.prompt_tokens;
  const int64_t generated = now.generated_tokens - before.generated_tokens;
  const bool idle =
      prompt == 0 && generated == 0 && now.requests_running == 0 && now.requests_waiting == 0;
  if (idle || seconds <= 0) return "";
  std::string line = fmt::format(
      "prompt {:.1f} tok/s, generation {:.1f} tok/s, running {}, waiting {}, KV {:.1f} %, prefix "
      "hits {:.1f} %",
      static_cast<double>(prompt) / seconds, static_cast<double>(generated) / seconds,
      now.requests_running, now.requests_waiting, percent(now.blocks_in_use, now.blocks_total),
      percent(now.prefix_cache_hits - before.prefix_cache_hits,
              now.prefix_cache_queries - before.prefix_cache_queries));
  const int64_t selected = now.kv.pages_selected - before.kv.pages_selected;
  if (selected > 0) line += fmt::format(", {} pages selected", selected);
  if (selected > 0 && now.frames_total > 0) {
    line += fmt::format(", {:.1f} % of them on the device, frames {:.1f} %",
                        percent(now.kv.pages_hit() - before.kv.pages_hit(), selected),
                        percent(now.frames_total - now.frames_free, now.frames_total));
  }
  return line;
}

}  // namespace telemetry
