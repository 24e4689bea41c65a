// POST /v1/completions and /v1/chat/completions, streaming and not. Thread: I/O.
#pragma once

#include "api/generate_request.h"
#include "api/service.h"
#include "http/exchange.h"

namespace api {

// REQUIRES: service.unavailable() is nothing.
http::Task<void> generate(Service& service, http::Exchange& exchange, Endpoint endpoint);

}  // namespace api
