#include "apps/find_model.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "apps/progress.h"
#include "base/sizes.h"
#include "hub/hub.h"

namespace apps {
namespace {

constexpr size_t kLineMax = 78;  // of print_progress

std::atomic<bool> stopped{false};

std::string time_left(double seconds) {
  const auto whole = static_cast<int64_t>(std::min(seconds, 1e6));
  return whole < 60 ? fmt::format("{} s left", whole) : fmt::format("{} min left", whole / 60 + 1);
}

// "model-00002-of-00004.safetensors 3/12: 1.2 GiB of 15.0 GiB, 85.1 MiB/s, 3 min left"; a long name
// is cut at its front.
std::string progress_line(const hub::FetchProgress& progress) {
  std::string figures =
      fmt::format(" {}/{}: {} of {}", progress.file_number, progress.num_files,
                  base::format_bytes(progress.bytes), base::format_bytes(progress.total_bytes));
  if (progress.bytes_per_s > 0) {
    const auto missing = static_cast<double>(progress.total_bytes - progress.bytes);
    figures +=
        fmt::format(", {}/s, {}", base::format_bytes(static_cast<int64_t>(progress.bytes_per_s)),
                    time_left(missing / progress.bytes_per_s));
  }
  const size_t room = kLineMax - std::min(kLineMax, figures.size());
  const std::string& file = progress.file;
  return (file.size() > room ? file.substr(file.size() - room) : file) + figures;
}

}  // namespace

base::Result<std::string> find_model_path(const std::string& model, bool weights) {
  hub::HubOptions options;
  options.cache_dir = hub::default_cache_dir(std::getenv("XDG_CACHE_HOME"), std::getenv("HOME"));
  options.progress = [](const hub::FetchProgress& progress) {
    print_progress(progress_line(progress));
  };
  options.repos = hub::repo_options([](const char* name) { return std::getenv(name); });
  options.repos.weights = weights;
  options.repos.user_agent = "spillway/" SPILLWAY_VERSION;
  options.repos.before_log = end_progress;
  options.repos.cancelled = [] { return stopped.load(std::memory_order_relaxed); };
  base::Result<std::string> path = hub::find_model(model, options);
  end_progress();
  return path;
}

void stop_fetching() {
  stopped.store(true, std::memory_order_relaxed);
}

std::string shown_model_name(const std::string& model) {
  return model.starts_with("hf:") ? model.substr(3) : model;
}

}  // namespace apps
