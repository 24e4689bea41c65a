// Names for `top -H`, debuggers and the report of a stall (telemetry/stall_report.h).
#pragma once

#include <pthread.h>

#include <cstddef>

namespace base {

// Of the calling thread; the kernel keeps 15 characters.
template <size_t kSize>
void name_this_thread(const char (&name)[kSize]) {
  static_assert(kSize <= 16);
  ::pthread_setname_np(::pthread_self(), name);
}

}  // namespace base
