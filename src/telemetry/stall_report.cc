#include "telemetry/stall_report.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace telemetry {
namespace {

namespace fs = std::filesystem;

// What the kernel says in one word or line; "" where it does not.
std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// R runs, S sleeps, D waits for a device; behind it the function of the kernel it sleeps in.
std::string describe_threads() {
  std::string text;
  std::error_code failed;
  for (const fs::directory_entry& task : fs::directory_iterator("/proc/self/task", failed)) {
    const std::string stat = read_line(task.path() / "stat");
    const size_t name_end = stat.rfind(')');  // names may hold anything
    const char state = name_end + 2 < stat.size() ? stat[name_end + 2] : '?';
    text += fmt::format("; thread {} {}: {} {}", task.path().filename().string(),
                        read_line(task.path() / "comm"), state, read_line(task.path() / "wchan"));
  }
  return text;
}

}  // namespace

std::string describe_stall(const core::EngineSnapshot& s) {
  return fmt::format(
      "{} requests run, {} wait ({} of them had run), {} steps ended, {} rows computed; blocks: {} "
      "in use, {} cached, {} free; rows of frames: {} free of {}; disk: {} pages read, {} written, "
      "{} failures{}",
      s.requests_running, s.requests_waiting, s.requests_preempted, s.steps, s.rows_run,
      s.blocks_in_use, s.blocks_cached, s.blocks_free, s.frames_free, s.frames_total,
      s.kv.disk_pages_read, s.kv.disk_pages_written, s.kv.disk_failures, describe_threads());
}

}  // namespace telemetry
