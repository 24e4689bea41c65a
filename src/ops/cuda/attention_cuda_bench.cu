// Attention on the GPU: microseconds, GB/s and TFLOP/s of each shape, and the share of the bound.
//
//   attention_cuda_bench [NAME]    shapes whose line contains NAME; a "$" stands behind each shape
//
// A shape's launches are captured in one graph, each with the pages of another layer, so that no
// page is found in the L2; the median of ten replays. Pages are random and scattered. The bound of
// decoding is what a kernel that only reads reaches in the same run.
#include <cuda_runtime.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "device/cuda/runtime.h"
#include "ops/cuda/attention.h"

namespace ops::cuda {
namespace {

using device::cuda::Buffer;
using device::cuda::Event;
using device::cuda::Graph;
using device::cuda::Stream;

constexpr int kRepeats = 10;
constexpr int64_t kBytesOfLaunches = int64_t{4} << 30;  // that a graph reads, at least

__global__ void fill_pages(std::byte* base, core::PageShape page, int64_t page_bytes,
                           int64_t count) {
  const int32_t elements = 2 * page.page_tokens * page.head_dim;
  const int32_t words = static_cast<int32_t>(page_bytes / 4);
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    auto* out = reinterpret_cast<uint32_t*>(base + i * page_bytes);
    for (int32_t w = static_cast<int32_t>(threadIdx.x); w < words; w += blockDim.x) {
      uint32_t x = static_cast<uint32_t>(i * words + w) * 2654435761u;
      x ^= x >> 15, x *= 2246822519u, x ^= x >> 13, x *= 3266489917u, x ^= x >> 16;
      if (page.type == core::DType::kBF16) {  // within (-2, 2)
        out[w] = (x & 0x807f807fu) | 0x3f003f00u | (x >> 3 & 0x00800080u);
      } else if (w * 4 >= elements) {
        out[w] = __float_as_uint(0.01f);
      } else {
        out[w] = page.type == core::DType::kF8E4M3 ? x & 0xb7b7b7b7u : x;
      }
    }
  }
}

__global__ void read_all(const uint4* from, int64_t count, uint32_t* out) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 x[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = __ldcs(from + i + k * stride);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum ^= x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
  }
  if (sum == 0x12345678) *out = sum;
}

template <typename T>
T* upload(std::vector<Buffer>& buffers, const std::vector<T>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  buffers.push_back(std::move(Buffer::allocate(bytes, "bench array")).value());
  CHECK(cudaMemcpy(buffers.back().data(), values.data(), static_cast<size_t>(bytes),
                   cudaMemcpyHostToDevice) == cudaSuccess);
  return buffers.back().as<T>();
}

// Microseconds of one of `launches` that `work` enqueues: the median of replays.
double measure(Stream& stream, int launches, const std::function<void()>& work) {
  work();
  stream.synchronize().value();
  Graph graph = std::move(Graph::capture(stream, work)).value();
  Event begin = std::move(Event::create(true)).value(),
        end = std::move(Event::create(true)).value();
  graph.launch(stream);
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    stream.record(begin);
    graph.launch(stream);
    stream.record(end);
    stream.synchronize().value();
    times.push_back(end.us_since(begin) / launches);
  }
  std::ranges::nth_element(times, times.begin() + kRepeats / 2);
  return times[kRepeats / 2];
}

struct Peak {
  double read_gbs = 0;
};

Peak measure_peak(Stream& stream, int num_sms) {
  constexpr int64_t kBytes = int64_t{4} << 30;
  Buffer memory = std::move(Buffer::allocate(kBytes, "bench")).value();
  stream.fill(memory.data(), 1, kBytes);
  const double us = measure(stream, 1, [&] {
    read_all<<<num_sms * 8, 512, 0, stream.handle()>>>(memory.as<uint4>(), kBytes / 16,
                                                       memory.as<uint32_t>());
  });
  return {.read_gbs = static_cast<double>(kBytes) / us / 1e3};
}

struct Shape {
  int32_t num_q_heads = 32, num_kv_heads = 8, head_dim = 128, page_tokens = 32;
  core::DType type = core::DType::kBF16;
  int32_t batch = 1, context = 0;
  int32_t listed = 0;     // pages of a selection
  int32_t streaming = 0;  // so many heads: sink 128, local 1024
};

// Pages, tables and queries of a decode call, for several layers.
struct DecodeBench {
  std::vector<Buffer> buffers;
  std::vector<DecodeArgs> layers;
  double bytes = 0;  // of a layer

  DecodeBench(Stream& stream, const Shape& shape, int num_sms) {
    std::mt19937 random(1);
    const int32_t pages = (shape.context + shape.page_tokens - 1) / shape.page_tokens;
    KvLayer kv = make_pages(stream, shape, pages, num_sms);
    std::vector<int32_t> rows(static_cast<size_t>(shape.batch) * static_cast<size_t>(pages));
    std::iota(rows.begin(), rows.end(), 0);
    std::ranges::shuffle(rows, random);
    const int32_t* device_rows = upload(buffers, rows);
    std::vector<int32_t> open_rows(static_cast<size_t>(shape.batch));
    std::iota(open_rows.begin(), open_rows.end(), 0);
    const int32_t* device_open = upload(buffers, open_rows);
    std::vector<PageTable> tables;
    for (int32_t s = 0; s < shape.batch; ++s) {
      tables.push_back({.frames = device_rows + int64_t{s} * pages,
                        .slot = s,
                        .open_rows = device_open + s,
                        .open_begin = pages - 1});
    }
    if (shape.streaming > 0) {
      std::vector<core::HeadKind> kinds(static_cast<size_t>(shape.num_kv_heads));
      for (int32_t h = 0; h < shape.streaming; ++h)
        kinds[static_cast<size_t>(2 * h + 1)] = {128, 1024};
      kv.kinds = upload(buffers, kinds);
    }
    std::vector<uint16_t> q(static_cast<size_t>(shape.batch * shape.num_q_heads * shape.head_dim));
    for (auto& x : q) x = static_cast<uint16_t>(0x3f00 | (random() & 0x807f));
    DecodeArgs args = {
        .kv = kv,
        .rows = {.num_rows = shape.batch,
                 .positions = upload(buffers, std::vector<int32_t>(static_cast<size_t>(shape.batch),
                                                                   shape.context - 1)),
                 .row_tables = upload(buffers, open_rows),
                 .tables = upload(buffers, tables)},
        .num_rows = shape.batch,
        .q = reinterpret_cast<__nv_bfloat16*>(upload(buffers, q)),
        .q_stride = int64_t{shape.num_q_heads} * shape.head_dim,
        .num_q_heads = shape.num_q_heads,
        .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
        .out = reinterpret_cast<__nv_bfloat16*>(upload(buffers, q)),
        .out_stride = int64_t{shape.num_q_heads} * shape.head_dim,
        .context_max = shape.context,
        .num_sms = num_sms};
    const int64_t workspace = decode_workspace_bytes(
        shape.batch, shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.context, num_sms);
    buffers.push_back(std::move(Buffer::allocate(workspace, "bench workspace")).value());
    stream.fill(buffers.back().data(), 0, workspace);
    args.workspace = buffers.back().data();
    for (int32_t layer = 0; layer * shape.num_kv_heads < kv.pool.num_columns; ++layer) {
      std::vector<int32_t> layer_columns(static_cast<size_t>(shape.num_kv_heads));
      std::iota(layer_columns.begin(), layer_columns.end(), layer * shape.num_kv_heads);
      args.kv.columns = upload(buffers, layer_columns);
      if (shape.listed > 0) add_lists(args, shape, rows, layer_columns, pages, random);
      layers.push_back(args);
    }
  }

  KvLayer make_pages(Stream& stream, const Shape& shape, int32_t pages, int num_sms) {
    const core::PageShape page = {shape.type, shape.page_tokens, shape.page_tokens, shape.head_dim};
    const int64_t page_bytes = page.page_bytes();
    const int64_t head_pages = shape.listed > 0 ? shape.listed : pages;
    const int32_t stream_pages = std::min(pages, (128 + 1024) / shape.page_tokens + 1);
    bytes = double(page_bytes) * shape.batch *
            (head_pages * (shape.num_kv_heads - shape.streaming) +
             int64_t{stream_pages} * shape.streaming);
    const int64_t layer_bytes = page_bytes * shape.batch * pages * shape.num_kv_heads;
    const int64_t layers_max = std::max<int64_t>(1, (int64_t{60} << 30) / layer_bytes);
    const auto num_layers = static_cast<int32_t>(std::min<int64_t>(
        layers_max, std::clamp<int64_t>(static_cast<int64_t>(kBytesOfLaunches / bytes), 1, 40)));
    const int32_t columns = num_layers * shape.num_kv_heads;
    const int64_t frames = int64_t{shape.batch} * pages * columns;
    buffers.push_back(std::move(Buffer::allocate(frames * page_bytes, "bench pages")).value());
    KvLayer kv = {.pool = {buffers.back().data(), page, page_bytes, columns, frames},
                  .num_kv_heads = shape.num_kv_heads};
    fill_pages<<<num_sms * 8, 256, 0, stream.handle()>>>(kv.pool.base, page, page_bytes, frames);
    if (page.is_quantised()) {
      kv.open.page_bytes = int64_t{4} * shape.page_tokens * shape.head_dim;
      kv.open.num_columns = shape.num_kv_heads;
      const int64_t open_bytes = kv.open.page_bytes * shape.batch * shape.num_kv_heads;
      buffers.push_back(std::move(Buffer::allocate(open_bytes, "bench open pages")).value());
      kv.open.base = buffers.back().data();
      stream.fill(kv.open.base, 0, open_bytes);
    }
    return kv;
  }

  void add_lists(DecodeArgs& args, const Shape& shape, const std::vector<int32_t>& rows,
                 const std::vector<int32_t>& layer_columns, int32_t pages, std::mt19937& random) {
    std::vector<int32_t> list;
    std::vector<int32_t> all(static_cast<size_t>(pages));
    for (int32_t s = 0; s < shape.batch; ++s) {
      for (int32_t h = 0; h < shape.num_kv_heads; ++h) {
        std::iota(all.begin(), all.end(), 0);
        std::shuffle(all.begin(), all.end() - 1, random);
        std::vector<int32_t> chosen(all.begin(), all.begin() + shape.listed - 1);
        chosen.push_back(pages - 1);
        std::ranges::sort(chosen);
        for (int32_t p : chosen) {
          list.push_back(rows[static_cast<size_t>(s * pages + p)] * args.kv.pool.num_columns +
                         layer_columns[static_cast<size_t>(h)]);
        }
      }
    }
    args.list = upload(buffers, list);
    args.list_stride = shape.listed;
    args.num_listed = upload(
        buffers,
        std::vector<int32_t>(static_cast<size_t>(shape.batch * shape.num_kv_heads), shape.listed));
  }
};

void bench_decode(Stream& stream, const Shape& shape, int num_sms, const Peak& peak,
                  const std::string& filter) {
  const std::string name = fmt::format(
      "decode {:<7} Hq {} Hk {} D {} P {} batch {} context {}{}{}", core::info(shape.type).name,
      shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.page_tokens, shape.batch,
      shape.context, shape.listed > 0 ? fmt::format(" list {}", shape.listed) : "",
      shape.streaming > 0 ? fmt::format(" streaming {}", shape.streaming) : "");
  if ((name + "$").find(filter) == std::string::npos) return;
  DecodeBench bench(stream, shape, num_sms);
  const double us = measure(stream, static_cast<int>(bench.layers.size()), [&] {
    for (const DecodeArgs& args : bench.layers) decode_attention(stream.handle(), args);
  });
  const double gbs = bench.bytes / us / 1e3;
  fmt::print("{:<80} {:9.1f} us {:7.0f} GB/s {:5.1f} % of reading\n", name, us, gbs,
             100 * gbs / peak.read_gbs);
  std::fflush(stdout);
}

// The portable prompt kernel over a whole prompt; open pages of quantised KV: all in row 0.
void bench_prefill(Stream& stream, Shape shape, int num_sms, const std::string& filter) {
  const std::string name = fmt::format(
      "prefill portable {:<7} Hq {} Hk {} D {} P {} prompt {}{}", core::info(shape.type).name,
      shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.page_tokens, shape.context,
      shape.streaming > 0 ? fmt::format(" streaming {}", shape.streaming) : "");
  if ((name + "$").find(filter) == std::string::npos) return;
  shape.batch = 1;
  DecodeBench bench(stream, shape, num_sms);
  const DecodeArgs& decode = bench.layers.front();
  const int64_t row = int64_t{shape.num_q_heads} * shape.head_dim;
  std::vector<uint16_t> q(static_cast<size_t>(shape.context * row));
  std::mt19937 random(3);
  for (auto& x : q) x = static_cast<uint16_t>(0x3f00 | (random() & 0x807f));
  PageTable table = {};
  CHECK(cudaMemcpy(&table, decode.rows.tables, sizeof(table), cudaMemcpyDeviceToHost) ==
        cudaSuccess);
  table.open_begin = 0;
  table.open_rows =
      upload(bench.buffers,
             std::vector<int32_t>(static_cast<size_t>(shape.context / shape.page_tokens + 1), 0));
  const PrefillSegment segment = {0, shape.context, 0, 0};
  const PrefillArgs args = {.kv = decode.kv,
                            .q = reinterpret_cast<__nv_bfloat16*>(upload(bench.buffers, q)),
                            .q_stride = row,
                            .num_q_heads = shape.num_q_heads,
                            .softmax_scale = decode.softmax_scale,
                            .tables = upload(bench.buffers, std::vector<PageTable>{table}),
                            .segments = upload(bench.buffers, std::vector<PrefillSegment>{segment}),
                            .host_segments = &segment,
                            .num_segments = 1,
                            .out = reinterpret_cast<__nv_bfloat16*>(upload(bench.buffers, q)),
                            .out_stride = row,
                            .num_sms = num_sms};
  const double us = measure(stream, 1, [&] { prefill_attention_portable(stream.handle(), args); });
  const double flops = 2.0 * shape.context * shape.context * static_cast<double>(row);
  fmt::print("{:<80} {:9.1f} us {:7.1f} TFLOP/s\n", name, us, flops / us / 1e6);
  std::fflush(stdout);
}

int run(const std::string& filter) {
  const auto gpu = device::cuda::find_gpu();
  if (!gpu.ok()) {
    fmt::print(stderr, "{}\n", gpu.error().message);
    return 1;
  }
  const int num_sms = gpu->num_sms;
  Stream stream = std::move(Stream::create()).value();
  const Peak peak = measure_peak(stream, num_sms);
  fmt::print("{}: {} SMs, reading alone {:.0f} GB/s\n", gpu->name, num_sms, peak.read_gbs);
  constexpr auto kI8 = core::DType::kI8, kF8 = core::DType::kF8E4M3, kBF16 = core::DType::kBF16;
  const std::vector<Shape> shapes = {
      {.batch = 8, .context = 131072},
      {.batch = 1, .context = 131072},
      {.batch = 1, .context = 32768},
      {.batch = 1, .context = 8192},
      {.batch = 64, .context = 1024},
      {.batch = 8, .context = 131072, .listed = 64},
      {.batch = 28, .context = 32768, .listed = 64},
      {.batch = 1, .context = 131072, .listed = 64},
      {.batch = 8, .context = 131072, .streaming = 4},
      {.page_tokens = 16, .batch = 8, .context = 65536},
      {.page_tokens = 64, .batch = 8, .context = 65536},
      {.type = kI8, .batch = 8, .context = 131072},
      {.type = kF8, .batch = 8, .context = 131072},
      {.type = kI8, .batch = 8, .context = 131072, .listed = 64},
      {.num_q_heads = 32, .num_kv_heads = 32, .batch = 8, .context = 32768},
      {.num_q_heads = 24, .num_kv_heads = 8, .head_dim = 64, .batch = 8, .context = 131072},
      {.num_q_heads = 8, .num_kv_heads = 4, .head_dim = 256, .batch = 8, .context = 65536},
      {64, 8, 128, 32, kBF16, 8, 65536},
      {64, 4, 128, 32, kBF16, 8, 65536}};
  for (const Shape& shape : shapes) bench_decode(stream, shape, num_sms, peak, filter);
  for (const Shape& shape : {Shape{.context = 8192}, Shape{.type = kI8, .context = 8192},
                             Shape{.num_q_heads = 8, .head_dim = 256, .context = 8192}}) {
    bench_prefill(stream, shape, num_sms, filter);
  }
  return 0;
}

}  // namespace
}  // namespace ops::cuda

int main(int argc, char** argv) {
  return ops::cuda::run(argc > 1 ? argv[1] : "");
}
