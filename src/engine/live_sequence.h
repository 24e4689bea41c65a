// A request inside the engine: the scheduler's sequence and what the engine alone needs about it.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/event_stream.h"
#include "sched/sequence.h"

namespace engine {

struct LiveSequence : sched::Sequence {
  std::shared_ptr<EventStream> events;
  RequestTimes times;
  size_t position = 0;  // in the engine's list of live sequences
  bool scheduled =
      false;           // its first step was planned: it counts no longer as waiting in the mailbox
  bool ended = false;  // out of the scheduler; only its last event is still due
};

}  // namespace engine
