// Events as vLLM writes them: msgpack of [time in seconds, [event, ...], data-parallel rank].
//
// An event is a map whose "type" is BlockStored, BlockRemoved or AllBlocksCleared, or an array with
// the type first and the fields in vLLM's order. Blocks that follow each other in one sequence and
// one medium share an event, and so do removals. Media are "GPU" (the device tier, whatever the
// device is), "CPU" and "DISK". Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/kv_events.h"

namespace events {

// A core::KvEventBatch, borrowed.
struct BatchView {
  double time_s = 0;        // since 1970
  int32_t page_tokens = 0;  // P
  std::span<const core::KvEvent> events;
  std::span<const core::TokenId> tokens;  // (stored events, P)
  std::string_view salts;                 // UTF-8
};

std::vector<uint8_t> encode(const BatchView& batch, bool positional);

}  // namespace events
