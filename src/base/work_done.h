// How much the thread pools of this process have computed so far, as a number that only tells
// whether something has been: a long loop is told from a hung one by it.
//
// One number for the process, so that who asks need not know the pools. Its callers' threads alone
// count (a loop that ended, an item of their own), which costs a few nanoseconds each. Thread: any.
#pragma once

#include <cstdint>

namespace base {

uint64_t work_done();

}  // namespace base
