// One line for people who watch a server: rates since the last line, and how full it is.
#pragma once

#include <string>

#include "core/engine_snapshot.h"

namespace telemetry {

// From two snapshots `seconds` apart. "" when nothing ran and nothing waits: an idle server says
// nothing.
std::string status_line(const core::EngineSnapshot& before, const core::EngineSnapshot& now,
                        double seconds);

}  // namespace telemetry
