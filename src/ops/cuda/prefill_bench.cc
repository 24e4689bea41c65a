// prefill_bench: prompt attention on the GPU against its bound, the rate of the matrix units.
//
//   prefill_bench [--repeats N] [--only CASE]
//
// Each figure is the median of N calls, timed by events. FLOPs are counted as 4 * D * Hq for each
// (row, visible key). Prompts in chunks are called in turns with the whole prompt, and stand beside
// it: two figures of different moments differ by more than chunks cost. bench/attention_peer.py
// measures cuDNN on the same shapes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "device/cuda/runtime.h"
#include "ops/cuda/attention.h"

namespace {

using ops::cuda::PageTable;
using ops::cuda::PrefillArgs;
using ops::cuda::PrefillSegment;

struct Options {
  int repeats = 7;
  std::string_view only;
};

struct Case {
  const char* name;
  int32_t tokens;
  int32_t head_dim = 128, page_tokens = 32;
  int32_t num_streaming = 0;  // of 8 KV heads: sink 128, local 1024
  int32_t chunk = 0;          // rows of a call; 0: all
  int32_t num_q_heads = 32, num_kv_heads = 8;
};

constexpr core::HeadKind kStreaming = {.sink = 128, .local = 1024};

template <typename T>
T value_of(base::Result<T> result) {
  CHECK(result.ok(), "{}", result.error().message);
  return std::move(result).value();
}

template <typename T>
device::cuda::Buffer upload(device::cuda::Stream& stream, const std::vector<T>& values) {
  auto buffer = value_of(device::cuda::Buffer::allocate(
      static_cast<int64_t>(values.size() * sizeof(T)), "a benchmark"));
  stream.copy(buffer.data(), values.data(), buffer.size());
  CHECK(stream.synchronize().ok());
  return buffer;
}

// Random BF16, a few megabytes of them again and again.
device::cuda::Buffer random_values(device::cuda::Stream& stream, int64_t bytes) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(4 << 20);
  for (uint16_t& x : values) {
    const float value = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    x = static_cast<uint16_t>(bits >> 16);
  }
  const auto run = static_cast<int64_t>(values.size() * 2);
  auto buffer = value_of(device::cuda::Buffer::allocate(bytes, "a benchmark"));
  for (int64_t at = 0; at < bytes; at += run) {
    stream.copy(buffer.data() + at, values.data(), std::min(run, bytes - at));
  }
  CHECK(stream.synchronize().ok());
  return buffer;
}

double visible_keys(const Case& c, bool streaming) {
  double keys = 0.0;
  for (int32_t p = 0; p < c.tokens; ++p) {
    const int32_t outside = std::max(p + 1 - kStreaming.local - kStreaming.sink, 0);
    keys += p + 1 - (streaming ? outside : 0);
  }
  return keys;
}

double flops_of(const Case& c) {
  const double dense = (c.num_kv_heads - c.num_streaming) * visible_keys(c, false);
  const double streaming = c.num_streaming == 0 ? 0.0 : c.num_streaming * visible_keys(c, true);
  return 4.0 * c.head_dim * (c.num_q_heads / c.num_kv_heads) * (dense + streaming);
}

// A prompt in the memory of the GPU, its pages in random order.
class Prompt {
 public:
  Prompt(const Case& c, const device::cuda::GpuInfo& gpu)
      : stream_(value_of(device::cuda::Stream::create())) {
    const core::PageShape page{.type = core::DType::kBF16,
                               .page_tokens = c.page_tokens,
                               .logical_page_tokens = c.page_tokens,
                               .head_dim = c.head_dim};
    std::vector<int32_t> rows(static_cast<size_t>((c.tokens - 1) / c.page_tokens + 1));
    std::iota(rows.begin(), rows.end(), 0);
    std::ranges::shuffle(rows, std::mt19937(11));
    std::vector<int32_t> columns(static_cast<size_t>(c.num_kv_heads));
    std::iota(columns.begin(), columns.end(), 0);
    std::vector<core::HeadKind> kinds(static_cast<size_t>(c.num_kv_heads));
    for (int32_t i = 0; i < c.num_streaming; ++i) {
      kinds[static_cast<size_t>(i * c.num_kv_heads / c.num_streaming)] = kStreaming;
    }
    const int32_t chunk = c.chunk == 0 ? c.tokens : c.chunk;
    for (int32_t at = 0; at < c.tokens; at += chunk) {
      segments_.push_back(
          {.row_begin = at, .row_end = std::min(at + chunk, c.tokens), .position_begin = at});
    }

    const int64_t row_elements = int64_t{c.num_q_heads} * c.head_dim;
    args_.kv.pool = {.page = page,
                     .page_bytes = page.page_bytes(),
                     .num_columns = c.num_kv_heads,
                     .num_frames = static_cast<int64_t>(rows.size()) * c.num_kv_heads};
    args_.kv.pool.base = keep(random_values(stream_, page.page_bytes() * args_.kv.pool.num_frames));
    args_.kv.num_kv_heads = c.num_kv_heads;
    args_.kv.columns = put(columns);
    args_.kv.kinds = c.num_streaming > 0 ? put(kinds) : nullptr;
    args_.q = reinterpret_cast<const __nv_bfloat16*>(
        keep(random_values(stream_, c.tokens * row_elements * 2)));
    args_.out = reinterpret_cast<__nv_bfloat16*>(
        keep(value_of(device::cuda::Buffer::allocate(c.tokens * row_elements * 2, "a benchmark"))));
    args_.q_stride = args_.out_stride = row_elements;
    args_.num_q_heads = c.num_q_heads;
    args_.softmax_scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    args_.tables = put(std::vector<PageTable>{{.frames = put(rows)}});
    args_.segments = put(segments_);
    args_.num_sms = gpu.num_sms;
    args_.num_segments = 1;
  }

  // Microseconds of a call over all rows, or of the calls over its chunks.
  double run() {
    stream_.record(begin_);
    for (size_t i = 0; i < segments_.size(); ++i) {
      PrefillArgs args = args_;
      args.segments += i;
      args.host_segments = segments_.data() + i;
      ops::cuda::prefill_attention_hopper(stream_.handle(), args);
    }
    stream_.record(end_);
    CHECK(end_.synchronize().ok());
    return end_.us_since(begin_);
  }

 private:
  std::byte* keep(device::cuda::Buffer buffer) {
    buffers_.push_back(std::move(buffer));
    return buffers_.back().data();
  }
  template <typename T>
  T* put(const std::vector<T>& values) {
    return reinterpret_cast<T*>(keep(upload(stream_, values)));
  }

  device::cuda::Stream stream_;
  device::cuda::Event begin_ = value_of(device::cuda::Event::create(true));
  device::cuda::Event end_ = value_of(device::cuda::Event::create(true));
  std::vector<device::cuda::Buffer> buffers_;
  std::vector<PrefillSegment> segments_;
  PrefillArgs args_;
};

double median(std::vector<double>& times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

void run_case(const Case& c, const Options& options, const device::cuda::GpuInfo& gpu) {
  Prompt prompt(c, gpu);
  std::optional<Prompt> whole;
  if (c.chunk > 0) {
    Case all = c;
    all.chunk = 0;
    whole.emplace(all, gpu);
    whole->run();
  }
  std::vector<double> times, whole_times;
  prompt.run();
  for (int i = 0; i < options.repeats; ++i) {
    times.push_back(prompt.run());
    if (whole) whole_times.push_back(whole->run());
  }
  const double us = median(times);
  std::printf("%-28s T %6d D %3d P %2d %10.1f us (best %.1f) %6.1f TFLOP/s", c.name, c.tokens,
              c.head_dim, c.page_tokens, us, times.front(), flops_of(c) / us * 1e-6);
  if (whole) std::printf(", whole in turns %.1f us", median(whole_times));
  std::printf("\n");
  std::fflush(stdout);
}

const std::vector<Case> kCases = {
    {.name = "2k", .tokens = 2048},
    {.name = "8k", .tokens = 8192},
    {.name = "32k", .tokens = 32768},
    {.name = "32k-chunks-512", .tokens = 32768, .chunk = 512},
    {.name = "32k-chunks-2048", .tokens = 32768, .chunk = 2048},
    {.name = "32k-tiles-8192", .tokens = 32768, .chunk = 8192},  // of a layer segment, as served
    {.name = "32k-pages-16", .tokens = 32768, .page_tokens = 16},
    {.name = "32k-pages-64", .tokens = 32768, .page_tokens = 64},
    {.name = "32k-channels-64", .tokens = 32768, .head_dim = 64},
    {.name = "32k-channels-256", .tokens = 32768, .head_dim = 256},
    {.name = "128k", .tokens = 131072},
    {.name = "128k-half-streaming", .tokens = 131072, .num_streaming = 4},
    {.name = "128k-all-streaming", .tokens = 131072, .num_streaming = 8},
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--repeats" && i + 1 < argc) {
      options.repeats = std::max(1, std::atoi(argv[++i]));
    } else if (arg == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else {
      std::fprintf(stderr, "prefill_bench [--repeats N] [--only CASE]\n");
      return 2;
    }
  }
  const auto gpu = device::cuda::find_gpu();
  if (!gpu.ok()) {
    std::fprintf(stderr, "%s\n", gpu.error().message.c_str());
    return 1;
  }
  for (const Case& c : kCases) {
    if (options.only.empty() || options.only == c.name) {
      run_case(c, options, gpu.value());
    }
  }
  return 0;
}
