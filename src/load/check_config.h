// The limits that every model must keep, whatever file it came from.
#pragma once

#include <string>

#include "base/result.h"
#include "core/model_config.h"

namespace load {

// Errors: kInvalidArgument (a size out of any sensible range), kUnsupported (a head size that no op
// computes), one line naming `where`, the field, expected and found.
base::Result<void> check_config(const std::string& where, const core::ModelConfig& config);

}  // namespace load
