// row_ops_cuda_bench: the ops that touch each value once, on the GPU, against the bytes they must
// move.
//
//   row_ops_cuda_bench
//
// Each measurement is a graph of 32 launches over rotating buffers (more than the L2 holds, where
// rows are many), the median of 15 replays: what a step pays for a launch. The bound is the bytes
// read and written at the speed of a large copy by cudaMemcpy, measured first. One row has no such
// bound: it shows what a launch costs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "base/check.h"
#include "device/cuda/runtime.h"
#include "ops/cuda/page_ops.h"
#include "ops/cuda/row_ops.h"
#include "ops/cuda/sample.h"

namespace {

using device::cuda::Buffer;

constexpr int kLaunches = 32, kReplays = 15;

class Bench {
 public:
  Bench() {
    auto gpu = device::cuda::find_gpu();
    CHECK(gpu.ok(), "{}", gpu.error().message);
    gpu_ = gpu.value();
    stream_ = std::move(device::cuda::Stream::create()).value();
    begin_ = std::move(device::cuda::Event::create(true)).value();
    end_ = std::move(device::cuda::Event::create(true)).value();
    const int64_t bytes = int64_t{1} << 30;
    std::byte* from = allocate<std::byte>(bytes);
    std::byte* to = allocate<std::byte>(bytes);
    stream_.copy(to, from, bytes);
    stream_.record(begin_);
    for (int i = 0; i < 8; ++i) stream_.copy(to, from, bytes);
    stream_.record(end_);
    CHECK(stream_.synchronize().ok());
    copy_gb_s_ = 8 * 2e-3 * static_cast<double>(bytes) / end_.us_since(begin_);
    std::printf("%s, %d SMs; copy on the device %.0f GB/s\n", gpu_.name.c_str(), gpu_.num_sms,
                copy_gb_s_);
    buffers_.clear();
  }

  // Random BF16 or FP32 near 1, whichever it is read as.
  template <typename T>
  T* allocate(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    buffers_.push_back(std::move(Buffer::allocate(bytes, "the benchmark")).value());
    static const std::vector<uint32_t> noise = [] {
      std::mt19937 random(7);
      std::vector<uint32_t> words(1 << 20);
      for (uint32_t& word : words) word = 0x3f003f00 | (random() & 0x80ff80ff);
      return words;
    }();
    const auto chunk = static_cast<int64_t>(4 * noise.size());
    for (int64_t at = 0; at < bytes; at += chunk)
      stream_.copy(buffers_.back().data() + at, noise.data(), std::min(chunk, bytes - at));
    CHECK(stream_.synchronize().ok());
    return buffers_.back().as<T>();
  }
  template <typename T>
  T* upload(const std::vector<T>& values) {
    T* array = allocate<T>(std::ssize(values));
    stream_.copy(array, values.data(), std::ssize(values) * static_cast<int64_t>(sizeof(T)));
    CHECK(stream_.synchronize().ok());
    return array;
  }
  void release() { buffers_.clear(); }
  cudaStream_t stream() const { return stream_.handle(); }

  // `call(i)` launches over the i-th set of buffers.
  void row(const char* op, int64_t rows, double bytes, const std::function<void(int)>& call) {
    const double us = median_us(kLaunches, call);
    const double gb_s = bytes / us * 1e-3;
    std::printf("| %-14s | %6lld | %8.2f | %7.0f | %5.1f |\n", op, static_cast<long long>(rows), us,
                gb_s, 100.0 * gb_s / copy_gb_s_);
  }

 private:
  double median_us(int launches, const std::function<void(int)>& call) {
    auto graph = device::cuda::Graph::capture(stream_, [&] {
      for (int i = 0; i < launches; ++i) call(i);
    });
    CHECK(graph.ok(), "{}", graph.error().message);
    std::vector<double> times;
    for (int i = 0; i < kReplays + 3; ++i) {
      stream_.record(begin_);
      graph.value().launch(stream_);
      stream_.record(end_);
      const auto done = stream_.synchronize();
      CHECK(done.ok(), "{}", done.error().message);
      if (i >= 3) times.push_back(end_.us_since(begin_) / launches);
    }
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    return times[kReplays / 2];
  }

  device::cuda::GpuInfo gpu_;
  device::cuda::Stream stream_;
  device::cuda::Event begin_, end_;
  double copy_gb_s_ = 0.0;
  std::vector<Buffer> buffers_;
};

// The 8B shape.
constexpr int64_t kModelDim = 4096, kFfnDim = 14336;
constexpr int32_t kQHeads = 32, kKvHeads = 8, kHeadDim = 128, kPageTokens = 32;
constexpr int64_t kQkv = (kQHeads + 2 * kKvHeads) * kHeadDim;

// Sets of buffers of `bytes` each that together exceed the L2 three times.
int sets_of(int64_t bytes) {
  return static_cast<int>(std::clamp<int64_t>((int64_t{160} << 20) / bytes + 1, 1, kLaunches));
}

void measure_norms(Bench& bench, int64_t rows) {
  const int sets = sets_of(rows * kModelDim * 6);
  std::vector<float*> hidden;
  std::vector<__nv_bfloat16*> out;
  for (int i = 0; i < sets; ++i) {
    hidden.push_back(bench.allocate<float>(rows * kModelDim));
    out.push_back(bench.allocate<__nv_bfloat16>(rows * kModelDim));
  }
  const float* weight = bench.allocate<float>(kModelDim);
  const auto set = [&](int i) { return static_cast<size_t>(i % sets); };
  const double elements = static_cast<double>(rows * kModelDim);
  bench.row("rms_norm", rows, 6 * elements, [&](int i) {
    ops::cuda::rms_norm(bench.stream(), {.in = hidden[set(i)],
                                         .weight = weight,
                                         .rows = rows,
                                         .width = kModelDim,
                                         .out = out[set(i)]});
  });
  bench.row("add_rms_norm", rows, 10 * elements, [&](int i) {
    ops::cuda::add_rms_norm(bench.stream(), {.y = out[set(i)],
                                             .weight = weight,
                                             .rows = rows,
                                             .width = kModelDim,
                                             .hidden = hidden[set(i)]});
  });
  constexpr int32_t kVocab = 128256;
  const __nv_bfloat16* table = bench.allocate<__nv_bfloat16>(int64_t{kVocab} * kModelDim);
  std::vector<int32_t> tokens(static_cast<size_t>(rows * sets));
  std::mt19937 random(3);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocab);
  const int32_t* ids = bench.upload(tokens);
  bench.row("embed", rows, 6 * elements, [&](int i) {
    ops::cuda::embed(bench.stream(), {.table = ops::cuda::Weight::of(table, kVocab, kModelDim),
                                      .tokens = ids + static_cast<int64_t>(set(i)) * rows,
                                      .rows = rows,
                                      .width = kModelDim,
                                      .hidden = hidden[set(i)]});
  });
  bench.release();
}

void measure_gate(Bench& bench, int64_t rows) {
  const int sets = sets_of(rows * kFfnDim * 6);
  std::vector<__nv_bfloat16*> in, out;
  for (int i = 0; i < sets; ++i) {
    in.push_back(bench.allocate<__nv_bfloat16>(rows * 2 * kFfnDim));
    out.push_back(bench.allocate<__nv_bfloat16>(rows * kFfnDim));
  }
  for (bool gelu : {false, true}) {
    bench.row(
        gelu ? "gated, gelu" : "gated, silu", rows, 6.0 * static_cast<double>(rows * kFfnDim),
        [&](int i) {
          const auto set = static_cast<size_t>(i % sets);
          ops::cuda::gated(
              bench.stream(),
              {.gate_up = in[set], .rows = rows, .width = kFfnDim, .gelu = gelu, .out = out[set]});
        });
  }
  bench.release();
}

// One sequence whose rows fill pages from position 0 on, in permuted frames.
void measure_rope(Bench& bench, int64_t rows) {
  const int sets = sets_of(rows * kQkv * 4);
  const auto pages = static_cast<int32_t>((rows + kPageTokens - 1) / kPageTokens);
  ops::cuda::KvLayer kv;
  kv.pool.page = {core::DType::kBF16, kPageTokens, kPageTokens, kHeadDim};
  kv.pool.page_bytes = kv.pool.page.page_bytes();
  kv.pool.num_columns = kKvHeads;
  kv.pool.num_frames = int64_t{pages} * sets * kKvHeads;
  kv.pool.base = bench.allocate<std::byte>(kv.pool.num_frames * kv.pool.page_bytes);
  kv.num_kv_heads = kKvHeads;
  std::vector<int32_t> columns, positions, row_tables(static_cast<size_t>(rows), 0);
  for (int32_t head = 0; head < kKvHeads; ++head) columns.push_back(head);
  kv.columns = bench.upload(columns);
  for (int32_t t = 0; t < rows; ++t) positions.push_back(t);
  std::vector<int32_t> frames(static_cast<size_t>(pages * sets));
  for (size_t i = 0; i < frames.size(); ++i) frames[i] = static_cast<int32_t>(i);
  std::shuffle(frames.begin(), frames.end(), std::mt19937(5));
  const int32_t* table = bench.upload(frames);
  std::vector<ops::cuda::PageTable> tables;
  std::vector<__nv_bfloat16*> qkv;
  for (int i = 0; i < sets; ++i) {
    tables.push_back({.frames = table + i * pages});
    qkv.push_back(bench.allocate<__nv_bfloat16>(rows * kQkv));
  }
  const ops::cuda::PageTable* device_tables = bench.upload(tables);
  const ops::cuda::StepRows step{.num_rows = static_cast<int32_t>(rows),
                                 .positions = bench.upload(positions),
                                 .row_tables = bench.upload(row_tables)};
  std::vector<float> frequencies;
  for (int c = 0; c < kHeadDim / 2; ++c)
    frequencies.push_back(std::pow(500000.0f, -static_cast<float>(c) / 64.0f));
  const float* frequencies_there = bench.upload(frequencies);
  const float* norm = bench.allocate<float>(kHeadDim);
  for (bool norms : {false, true}) {
    bench.row(norms ? "rope, q/k norm" : "rope_and_write", rows,
              4.0 * static_cast<double>(rows * kQkv), [&](int i) {
                ops::cuda::QkvArgs args{.kv = kv,
                                        .rows = step,
                                        .qkv = qkv[static_cast<size_t>(i % sets)],
                                        .num_q_heads = kQHeads,
                                        .head_dim = kHeadDim,
                                        .q_norm = norms ? norm : nullptr,
                                        .k_norm = norms ? norm : nullptr,
                                        .inverse_frequencies = frequencies_there};
                args.rows.tables = device_tables + i % sets;
                ops::cuda::rope_and_write(bench.stream(), args);
              });
  }
  bench.release();
}

// Pages that seal in a step: one of every head for each of `pages` sequences, or of a prompt.
void measure_seals(Bench& bench, int32_t pages) {
  constexpr int kSets = 4;
  for (auto type : {core::DType::kBF16, core::DType::kI8}) {
    ops::cuda::KvLayer kv;
    kv.pool.page = {type, kPageTokens, kPageTokens, kHeadDim};
    kv.pool.page_bytes = kv.pool.page.page_bytes();
    kv.pool.num_columns = kKvHeads;
    kv.pool.num_frames = int64_t{pages} * kSets * kKvHeads;
    kv.pool.base = bench.allocate<std::byte>(kv.pool.num_frames * kv.pool.page_bytes);
    kv.num_kv_heads = kKvHeads;
    kv.open = {.page_bytes = 4 * kPageTokens * kHeadDim, .num_columns = kKvHeads};
    kv.open.base =
        bench.allocate<std::byte>(int64_t{pages} * kSets * kKvHeads * kv.open.page_bytes);
    std::vector<int32_t> heads, rows;
    for (int32_t head = 0; head < kKvHeads; ++head) heads.push_back(head);
    for (int32_t i = 0; i < pages * kSets; ++i) rows.push_back(i);
    const int32_t* columns = bench.upload(heads);
    kv.columns = columns;
    const int32_t* frames = bench.upload(rows);
    std::vector<ops::cuda::PageTable> tables;
    for (int32_t i = 0; i < kSets; ++i)
      tables.push_back({.frames = frames + i * pages, .open_rows = frames + i * pages});
    const ops::cuda::PageTable* tables_there = bench.upload(tables);
    std::vector<ops::cuda::SealArgs::Page> items;
    for (int32_t i = 0; i < kSets * pages; ++i) items.push_back({i / pages, i % pages, i});
    const ops::cuda::SealArgs::Page* items_there = bench.upload(items);
    ops::cuda::SealArgs args{.kv = kv, .tables = tables_there, .pages_max = pages};
    args.stats = {nullptr, kv.pool.page.stats_bytes(), int64_t{pages} * kSets};
    args.stats.base =
        bench.allocate<std::byte>(args.stats.stats_bytes * args.stats.num_blocks * kKvHeads);
    args.selecting_columns = columns;
    args.num_pages = bench.upload(std::vector<int32_t>{pages});
    const double elements = static_cast<double>(pages) * kKvHeads * kPageTokens * kHeadDim;
    const bool quantised = kv.pool.page.is_quantised();
    if (quantised) {
      bench.row("kv_seal, int8", pages, 6 * elements, [&](int i) {
        args.pages = items_there + i % kSets * pages;
        ops::cuda::kv_seal(bench.stream(), args);
      });
    }
    bench.row(quantised ? "stats of int8" : "stats of BF16", pages,
              (quantised ? 1.0 : 2.0) * elements + elements / 8, [&](int i) {
                args.pages = items_there + i % kSets * pages;
                ops::cuda::page_stats(bench.stream(), args);
              });
    bench.release();
  }
}

void measure_sampling(Bench& bench, int32_t rows) {
  constexpr int64_t kVocab = 128256;
  const int sets = sets_of(rows * kVocab * 4);
  std::vector<float> noise(kVocab);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (float& x : noise) x = normal(random);
  std::vector<const float*> logits;
  for (int i = 0; i < sets; ++i) {
    std::vector<float> all;
    for (int32_t row = 0; row < rows; ++row) all.insert(all.end(), noise.begin(), noise.end());
    logits.push_back(bench.upload(all));
  }
  std::vector<ops::cuda::TokenCount> counts(kVocab);
  for (size_t i = 0; i < 1000; ++i) counts[7 * i] = 1;
  const ops::cuda::TokenCount* counts_there = bench.upload(counts);
  auto* results = bench.allocate<ops::cuda::SampleResult>(rows);
  auto* workspace =
      bench.allocate<std::byte>(ops::cuda::sample_portable_workspace_bytes(rows, kVocab));
  const auto measure = [&](const char* name, ops::cuda::SampleRow row, auto* op) {
    std::vector<ops::cuda::SampleRow> all(static_cast<size_t>(rows), row);
    for (int32_t i = 0; i < rows; ++i) all[static_cast<size_t>(i)].logits_row = i;
    const ops::cuda::SampleRow* there = bench.upload(all);
    bench.row(name, rows, 4.0 * static_cast<double>(rows * kVocab), [&](int i) {
      op(bench.stream(), {.logits = logits[static_cast<size_t>(i % sets)],
                          .vocab_size = kVocab,
                          .rows = there,
                          .num_rows = rows,
                          .counts = counts_there,
                          .results = results,
                          .workspace = workspace});
    });
  };
  measure("greedy", {}, ops::cuda::sample);
  measure("greedy, 1 block", {}, ops::cuda::sample_portable);
  measure("1000 penalties", {.presence_penalty = 0.5f, .counts_row = 0}, ops::cuda::sample);
  measure("20 logprobs", {.num_logprobs = 20}, ops::cuda::sample);
  measure("draw", {.temperature = 1.0f, .seed = 5}, ops::cuda::sample);
  measure("top_k 50", {.temperature = 1.0f, .top_k = 50, .seed = 5}, ops::cuda::sample);
  measure("top_p 0.9", {.temperature = 1.0f, .top_p = 0.9f, .seed = 5}, ops::cuda::sample);
  measure("k 50, p 0.9", {.temperature = 1.0f, .top_p = 0.9f, .top_k = 50, .seed = 5},
          ops::cuda::sample);
  bench.release();
}

}  // namespace

int main() {
  Bench bench;
  std::printf("8B shape\n| op             |   rows |       us |    GB/s |  %% of a copy |\n");
  std::printf("| --- | ---: | ---: | ---: | ---: |\n");
  for (int64_t rows : {1, 8, 64, 512, 4096, 16384}) {
    measure_norms(bench, rows);
    measure_rope(bench, rows);
    measure_gate(bench, rows);
  }
  for (int32_t pages : {1, 8, 512}) measure_seals(bench, pages);
  for (int32_t rows : {1, 8, 64}) measure_sampling(bench, rows);
  return 0;
}
