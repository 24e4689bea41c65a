// Tells when the engine has work and gets nowhere: a hung device, disk or lock.
//
// Progress is EngineSnapshot::progress: steps that ended and, inside a step, whatever its executor
// reports, so that a long prompt on a slow machine is no stall. Who observes also decides what
// follows: api/ answers /health with 503, logs the state once, and ends the process when the grace
// is over, since a thread that hangs cannot be ended. Pure: sees no clock. Thread: one.
#pragma once

#include <cstdint>
#include <optional>

#include "core/engine_snapshot.h"

namespace engine {

class StallWatch {
 public:
  enum class State : uint8_t { kFine, kStalled, kGivenUp };

  // Stalled after `timeout_us` with work and without progress, given up `grace_us` later.
  StallWatch(int64_t timeout_us, int64_t grace_us) : timeout_us_(timeout_us), grace_us_(grace_us) {}

  // REQUIRES: now_us does not fall.
  State observe(const core::EngineSnapshot& snapshot, int64_t now_us);
  // Without progress and with work, as of the last observation.
  int64_t standing_us() const { return standing_us_; }

 private:
  const int64_t timeout_us_, grace_us_;
  std::optional<uint64_t> progress_;
  int64_t since_us_ = 0;
  int64_t standing_us_ = 0;
};

}  // namespace engine
