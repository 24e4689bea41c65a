// What is logged, once, when the engine has work and gets nowhere: its last books, and where this
// process's threads are. For people.
#pragma once

#include <string>

#include "core/engine_snapshot.h"

namespace telemetry {

// One line, as the log has no others. The threads are read from /proc/self/task, as far as that can
// be read.
std::string describe_stall(const core::EngineSnapshot& snapshot);

}  // namespace telemetry
