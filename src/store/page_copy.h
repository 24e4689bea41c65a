// One page from one place of memory to another, and how a processor writes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/result.h"

namespace store {

struct PageCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

// kStreaming writes past the caches: for homes, which nobody reads soon, so that they push nothing
// out that the next step wants. A streamed write is ordered before a later release only by
// finish_stores().
enum class Stores : uint8_t { kPlain, kStreaming };

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes, Stores stores);
void finish_stores(Stores stores);

// Tests: called before each page of a load or save, by the thread that copies it. An error fails
// that transfer, a wait in it delays the transfer.
using TransferFault = std::function<base::Result<void>(bool is_save, const PageCopy& copy)>;

}  // namespace store
