#include "store/page_copy.h"

#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace store {

#if defined(__SSE2__)
namespace {

constexpr int64_t kLineBytes = 64;

// REQUIRES: `to` on a cache line. Whole lines are streamed, so that each leaves in one write.
int64_t stream_lines(std::byte* to, const std::byte* from, int64_t bytes) {
  const int64_t lines_bytes = bytes / kLineBytes * kLineBytes;
  for (int64_t at = 0; at < lines_bytes; at += kLineBytes) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  return lines_bytes;
}

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes, Stores stores) {
  int64_t done = 0;
  if (stores == Stores::kStreaming && reinterpret_cast<uintptr_t>(to) % kLineBytes == 0)
    done = stream_lines(to, from, bytes);
  std::memcpy(to + done, from + done, static_cast<size_t>(bytes - done));
}

void finish_stores(Stores stores) {
  if (stores == Stores::kStreaming) _mm_sfence();
}
#else
void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes, Stores) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void finish_stores(Stores) {}
#endif

}  // namespace store
