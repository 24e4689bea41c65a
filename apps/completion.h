// One request through the engine, start to end, for the commands that wait for their answers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace apps {

struct Completion {
  std::vector<core::TokenId> tokens;  // generated, the ending one included
  // By token, where the request asks for two log-probabilities or more: how far the best is above
  // the second.
  std::vector<float> margins;
  core::FinishReason reason = core::FinishReason::kStop;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  engine::RequestTimes times;
};

// Submits `request` and waits for its end, however long. `on_token` (may be empty) sees each token
// as it comes. Errors: the engine's refusal, or kInternal with its line when it failed.
base::Result<Completion> complete(engine::Engine& engine, core::Request request,
                                  const std::function<void(core::TokenId)>& on_token = {});

// The same for several requests; all are submitted before the first is waited for, at once or, with
// `arrivals` of as many ascending seconds from now, each in its time.
base::Result<std::vector<Completion>> complete_all(engine::Engine& engine,
                                                   std::vector<core::Request> requests,
                                                   std::span<const double> arrivals = {});

// A request id that no other caller of this process has, and the clock that requests carry.
core::RequestId next_request_id();
int64_t now_us();

}  // namespace apps
