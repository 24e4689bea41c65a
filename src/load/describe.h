// A model in a dozen lines for people: `spillway inspect`.
#pragma once

#include <string>

#include "load/model_files.h"

namespace load {

// Several lines, each ending in a newline; aligned in two columns. Foreign text in it is made
// printable.
std::string describe(const ModelFiles& model);

}  // namespace load
