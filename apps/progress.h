// One line about work that takes more than two seconds: overwritten in place on a terminal, and
// absent where standard error is a file. Thread: the main one.
#pragma once

#include <string>

namespace apps {

void print_progress(const std::string& line);
// Takes the line away, if there is one; before anything else is printed.
void end_progress();

}  // namespace apps
