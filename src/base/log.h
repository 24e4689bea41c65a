// Logging: one process-wide logger to standard error, so that standard output stays free for
// answers and tables.
//
//   LOG_INFO("loaded {} tensors in {} ms", n, ms);
//
// Thread: any. A line below the level costs one comparison.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

#include "base/result.h"

namespace base {

// level: trace, debug, info, warn, error or off. Errors: kInvalidArgument for another word.
Result<void> set_log_level(std::string_view level);

// The logger that the macros write to.
spdlog::logger& logger();

}  // namespace base

#define LOG_DEBUG(...) ::base::logger().debug(__VA_ARGS__)
#define LOG_INFO(...) ::base::logger().info(__VA_ARGS__)
#define LOG_WARN(...) ::base::logger().warn(__VA_ARGS__)
#define LOG_ERROR(...) ::base::logger().error(__VA_ARGS__)
