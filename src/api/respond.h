// Errors as the answer of a handler, in the shape that clients of its path expect. Thread: I/O.
#pragma once

#include "api/errors.h"
#include "http/exchange.h"

namespace api {

// REQUIRES: no answer yet.
http::Task<void> respond_error(http::Exchange& exchange, ApiError error);

// What stands in front of every generated answer and of what is made by text workers: the queue of
// bodies is full.
ApiError body_queue_full();

}  // namespace api
