#include "engine/stall_watch.h"

namespace engine {

StallWatch::State StallWatch::observe(const core::EngineSnapshot& snapshot, int64_t now_us) {
  const bool has_work = snapshot.requests_running + snapshot.requests_waiting > 0;
  if (!has_work || progress_ != snapshot.progress) since_us_ = now_us;
  progress_ = snapshot.progress;
  standing_us_ = now_us - since_us_;
  if (standing_us_ < timeout_us_) return State::kFine;
  return standing_us_ < timeout_us_ + grace_us_ ? State::kStalled : State::kGivenUp;
}

}  // namespace engine
