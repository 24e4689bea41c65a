// What the engine itself refuses: requests that would break its promises or read outside the
// model's tables. The values of sampling parameters are api/'s to check.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "core/request.h"

namespace engine {

struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t page_tokens = 0;  // P
  int32_t context_max = 0;  // tokens of prompt and output
  int32_t prompt_max = 0;   // tokens: what the device tier can compute while nothing else runs
  int32_t budget_max = 0;   // tokens of sparse attention; 0: dense only
};

// Errors: those of Engine::submit, kOverloaded aside. Thread: any.
base::Result<void> check_request(const core::Request& request, const RequestLimits& limits);

}  // namespace engine
