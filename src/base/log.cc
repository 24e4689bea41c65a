#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

namespace base {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("spillway",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S.%e %L %v");
    return made;
  }();
  return *instance;
}

Result<void> set_log_level(std::string_view level) {
  for (const char* known : {"trace", "debug", "info", "warn", "error", "off"}) {
    if (level == known) {
      logger().set_level(spdlog::level::from_str(std::string(level)));
      return {};
    }
  }
  return error(Code::kInvalidArgument,
               "log level '{}': expected trace, debug, info, warn, error or off", level);
}

}  // namespace base
