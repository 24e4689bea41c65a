// Runs another program without a shell and watches it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace hub {

struct ProcessOutcome {
  int exit_status = 0;     // 128 + signal if a signal ended it
  std::string last_words;  // the end of its standard output and error together, at most 4 KiB
};

// Runs arguments[0], found on PATH, to its end. `tick` is called about twice a second meanwhile.
// REQUIRES: arguments not empty. Thread: any. Errors: kIo when it cannot be started.
base::Result<ProcessOutcome> run_process(const std::vector<std::string>& arguments,
                                         const std::function<void()>& tick);

}  // namespace hub
