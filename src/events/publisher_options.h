// What `--kv-events-config` says, with the names that vLLM has for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace events {

struct PublisherOptions {
  std::string endpoint = "tcp://127.0.0.1:5557";  // of the PUB socket, bound
  std::string replay_endpoint;                    // of the ROUTER socket, bound; "": none
  std::string topic;                              // first frame of every message
  int32_t buffer_steps = 10'000;                  // batches kept for replay
  int32_t hwm = 100'000;             // messages that may wait for one subscriber; more are dropped
  int32_t max_queue_size = 100'000;  // events that may wait for the publisher
  bool positional = false;           // events as arrays, as vLLM had them, instead of maps
};

// Nothing: events are off, as they are unless `enable_kv_cache_events` is true. Errors:
// kInvalidArgument, naming the field, what is expected and what stands there.
base::Result<std::optional<PublisherOptions>> parse_publisher_options(std::string_view json);

}  // namespace events
