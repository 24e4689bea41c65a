#include "apps/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace apps {
namespace {
bool shown = false;
}

void print_progress(const std::string& line) {
  if (::isatty(STDERR_FILENO) != 1) return;
  fmt::print(stderr, "\r{:<78}", line);
  shown = true;
}

void end_progress() {
  if (shown) fmt::print(stderr, "\r{:<78}\r", "");
  shown = false;
}

}  // namespace apps
