// What the engine itself refuses: requests that would break its promises or read outside the
// model's tables. The values of sampling parameters are api/'s to check.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "core/request.h"

namespace engine {

// Errors: those of Engine::submit, kOverloaded aside. Thread: any.
base::Result<void> check_request(const core::Request& request, int32_t vocab_size,
                                 int32_t context_max);

}  // namespace engine
