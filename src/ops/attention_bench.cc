// attention_bench: attention at the shapes that matter against what this machine can do.
//
//   attention_bench [--threads N] [--isa avx2|avx512] [--repeats N] [--only prompt|decode] [--clock
//   wall|cpu]
//
// Prompt rows are held against the rate of the instruction that multiplies BF16, decode rows
// against plain reads over a buffer larger than the caches, both measured in the same run. Each
// figure is the best of the repeats. On a machine that others use,
// --threads 1 --clock cpu counts only the time that the thread ran.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/buffer.h"
#include "device/cpu.h"
#include "ops/bench_peaks.h"
#include "ops/op_table.h"

namespace {

// Seconds of a clock that only goes forward.
double now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Options {
  int threads = device::num_physical_cores();
  device::Isa isa = device::detect_isa();
  int repeats = 7;
  std::string_view only;  // "prompt", "decode" or empty for both
  clockid_t clock = CLOCK_MONOTONIC;
};

struct Shape {
  const char* name;
  int32_t num_q_heads, num_kv_heads, head_dim, page_tokens;
  core::DType type = core::DType::kBF16;
  int32_t num_streaming = 0;  // the last KV heads: sink 64, local 256
  int32_t num_selected = 0;   // pages of a decode row's list for each retrieval head; 0: all
};

constexpr core::HeadKind kStreaming = {.sink = 64, .local = 256};

struct Case {
  Shape shape;
  core::RowKind kind;
  int32_t context, rows, num_sequences;
};

device::Buffer allocate(int64_t bytes) {
  auto buffer = device::Buffer::allocate(bytes, "benchmark");
  CHECK(buffer.ok(), "{} bytes", bytes);
  return std::move(buffer).value();
}

// Random codes, which normal numbers' bytes are not bad for, and a scale for each.
void set_scales(const device::Buffer& pool, const core::PageShape& page) {
  const int64_t elements = 2 * int64_t{page.page_tokens} * page.head_dim;
  for (std::byte* p = pool.data(); p < pool.data() + pool.size(); p += page.page_bytes()) {
    std::fill_n(reinterpret_cast<float*>(p + elements), page.head_dim + 1, 0.01f);
  }
}

// Normal numbers. The upper half of a float is a bfloat16; read as half precision the same bits are
// moderate too.
void fill(const device::Buffer& buffer, core::DType type) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> table(4093);
  for (float& x : table) x = normal(random);
  const auto drawn = [&](int64_t i) {
    return table[static_cast<size_t>(i * 7 % std::ssize(table))];
  };
  if (type == core::DType::kF32) {
    for (int64_t i = 0; i < buffer.size() / 4; ++i) buffer.as<float>()[i] = drawn(i);
  } else {
    for (int64_t i = 0; i < buffer.size() / 2; ++i) {
      buffer.as<uint16_t>()[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(drawn(i)) >> 16);
    }
  }
}

// The sequences of a case, each computing its last rows, with pages at shuffled frames.
class Bench {
 public:
  explicit Bench(const Case& c) : case_(c) {
    page_ = {.type = c.shape.type,
             .page_tokens = c.shape.page_tokens,
             .logical_page_tokens = c.shape.page_tokens,
             .head_dim = c.shape.head_dim};
    const int32_t pages = (c.context + c.shape.page_tokens - 1) / c.shape.page_tokens;
    const int64_t column_bytes = page_.page_bytes() * pages * c.num_sequences;
    pool_ = allocate(column_bytes * c.shape.num_kv_heads);
    for (int32_t head = 0; head < c.shape.num_kv_heads; ++head) {
      heads_.push_back({.base = pool_.data() + head * column_bytes});
      if (head >= c.shape.num_kv_heads - c.shape.num_streaming) heads_.back().kind = kStreaming;
    }
    fill(pool_, c.shape.type);
    if (page_.is_quantised()) set_scales(pool_, page_);
    const int64_t open_bytes = ops::KvLayer{page_, {}}.written_page().page_bytes();
    open_ = allocate(open_bytes * c.num_sequences * ((c.rows - 1) / page_.page_tokens + 2));
    fill(open_, core::DType::kBF16);
    for (ops::KvHead& head : heads_) head.open_base = open_.data();
    for (int32_t i = 0; i < pages * c.num_sequences; ++i) frames_.push_back(i);
    std::shuffle(frames_.begin(), frames_.end(), std::mt19937(1));
    open_frames_.resize(static_cast<size_t>((c.rows - 1) / page_.page_tokens + 2));
    std::iota(open_frames_.begin(), open_frames_.end(), 0);
    // Lists of the first pages of shuffled tables: pages from everywhere, like any selection.
    num_selected_.assign(static_cast<size_t>(c.shape.num_kv_heads), c.shape.num_selected);
    for (int32_t i = 0; i < c.num_sequences; ++i) {
      segments_.push_back(
          {.kind = c.kind,
           .row_begin = i * c.rows,
           .row_end = (i + 1) * c.rows,
           .position_begin = c.context - c.rows,
           .frames = frames_.data() + int64_t{i} * pages,
           .num_selected = c.shape.num_selected > 0 ? num_selected_.data() : nullptr,
           .stream_frames = frames_.data() + int64_t{i} * pages,
           .open_frames = page_.is_quantised() ? open_frames_.data() : nullptr});
    }
  }

  double best_seconds(const Options& options, device::Stream& stream) const {
    const ops::OpTable& table = ops::op_table(options.isa);
    const int32_t rows = case_.rows * case_.num_sequences;
    const bool decode = case_.kind == core::RowKind::kDecode;
    const int64_t stride = int64_t{case_.shape.num_q_heads} * case_.shape.head_dim;
    const device::Buffer q = allocate(stride * rows * 4), out = allocate(q.size());
    fill(q, core::DType::kF32);
    const device::Buffer workspace =
        allocate(table.attention_workspace_bytes({.num_q_heads = case_.shape.num_q_heads,
                                                  .num_kv_heads = case_.shape.num_kv_heads,
                                                  .head_dim = case_.shape.head_dim,
                                                  .page_tokens = case_.shape.page_tokens,
                                                  .rows_max = decode ? 0 : rows,
                                                  .decode_rows_max = decode ? rows : 0,
                                                  .context_max = case_.context,
                                                  .num_threads = options.threads}));
    const ops::AttentionArgs args{
        .kv = {page_, heads_},
        .q = q.as<float>(),
        .q_stride = stride,
        .num_q_heads = case_.shape.num_q_heads,
        .softmax_scale = 1.0f / std::sqrt(static_cast<float>(case_.shape.head_dim)),
        .segments = segments_,
        .out = out.as<float>(),
        .out_stride = stride,
        .workspace = {workspace.data(), static_cast<size_t>(workspace.size())}};
    double best = 1e30;
    for (int i = 0; i < options.repeats; ++i) {
      const double start = now(options.clock);
      table.attention(stream, args);
      best = std::min(best, now(options.clock) - start);
    }
    return best;
  }

 private:
  const Case& case_;
  core::PageShape page_;
  std::vector<ops::KvHead> heads_;
  device::Buffer pool_, open_;
  std::vector<int32_t> frames_, open_frames_, num_selected_;
  std::vector<ops::AttentionSegment> segments_;
};

constexpr Shape kSmol = {"Hq 9 Hk 3 D 64", 9, 3, 64, 32};
constexpr Shape kNeedle = {"Hq 8 Hk 2 D 128", 8, 2, 128, 32};
constexpr Shape kNeedleF16 = {"the same, F16", 8, 2, 128, 32, core::DType::kF16};
constexpr Shape kNeedleF32 = {"the same, F32", 8, 2, 128, 32, core::DType::kF32};
constexpr auto kBf16 = core::DType::kBF16;
constexpr Shape kNeedleHalf = {"1 KV head streams", 8, 2, 128, 32, kBf16, 1};
constexpr Shape kNeedleStreams = {"both stream", 8, 2, 128, 32, kBf16, 2};
constexpr Shape kNeedleSelects = {"64 pages a head", 8, 2, 128, 32, kBf16, 0, 64};
constexpr Shape kNeedleI8 = {"the same, int8", 8, 2, 128, 32, core::DType::kI8};
constexpr Shape kNeedleF8 = {"the same, fp8", 8, 2, 128, 32, core::DType::kF8E4M3};
constexpr Shape kNeedleI8Selects = {"int8, 64 pages", 8, 2, 128, 32, core::DType::kI8, 0, 64};
constexpr auto kPrompt = core::RowKind::kPrompt;
constexpr auto kDecode = core::RowKind::kDecode;

constexpr Case kCases[] = {
    {kSmol, kPrompt, 512, 512, 1},
    {kSmol, kPrompt, 4096, 512, 1},
    {kNeedle, kPrompt, 512, 512, 1},
    {kNeedle, kPrompt, 8192, 512, 1},
    {kNeedle, kPrompt, 32768, 512, 1},
    {kNeedle, kPrompt, 8192, 64, 1},
    {kNeedle, kPrompt, 16384, 512, 1},
    {kNeedleHalf, kPrompt, 16384, 512, 1},
    {kNeedleStreams, kPrompt, 16384, 512, 1},
    {kNeedleF16, kPrompt, 8192, 512, 1},
    {kNeedleF32, kPrompt, 8192, 512, 1},
    {kSmol, kDecode, 256, 1, 1},
    {kSmol, kDecode, 8192, 1, 1},
    {kSmol, kDecode, 8192, 1, 8},
    {kNeedle, kDecode, 8192, 1, 1},
    {kNeedle, kDecode, 8192, 1, 8},
    {kNeedle, kDecode, 32768, 1, 1},
    {kNeedle, kDecode, 32768, 1, 8},
    {kNeedleSelects, kDecode, 32768, 1, 1},
    {kNeedleSelects, kDecode, 32768, 1, 8},
    {kNeedleHalf, kDecode, 32768, 1, 1},
    {kNeedleStreams, kDecode, 32768, 1, 1},
    {kNeedleF16, kDecode, 8192, 1, 8},
    {kNeedleF32, kDecode, 8192, 1, 8},
    {kNeedleI8, kPrompt, 8192, 512, 1},
    {kNeedleF8, kPrompt, 8192, 512, 1},
    {kNeedleI8, kDecode, 8192, 1, 8},
    {kNeedleF8, kDecode, 8192, 1, 8},
    {kNeedleI8, kDecode, 32768, 1, 1},
    {kNeedleI8Selects, kDecode, 32768, 1, 1},
};

// Keys that a row of the last context / rows sees, summed over KV heads.
double keys_of_heads(const Case& c) {
  const Shape& shape = c.shape;
  const double all = c.context - (c.rows - 1) / 2.0;
  const double retrieval = shape.num_selected > 0 ? shape.num_selected * shape.page_tokens : all;
  const double streaming = std::min<double>(all, kStreaming.sink + kStreaming.local);
  return (shape.num_kv_heads - shape.num_streaming) * retrieval + shape.num_streaming * streaming;
}

void print_case(const Case& c, double seconds, const ops::Peaks& peaks) {
  const double keys = keys_of_heads(c) * c.num_sequences;
  const double group = c.shape.num_q_heads / c.shape.num_kv_heads;
  const double gflops = 4 * keys * c.rows * group * c.shape.head_dim / seconds * 1e-9;
  const auto row_bytes = static_cast<double>(core::row_bytes(c.shape.type, c.shape.head_dim));
  const double gbps = 2.0 * keys * row_bytes / seconds * 1e-9;
  const bool decode = c.kind == kDecode;
  std::printf("| %-17s | %s | %5d | %3d x %d | %9.1f | %6.0f | %5.1f | %3.0f %% |\n", c.shape.name,
              decode ? "decode" : "prompt", c.context, c.num_sequences, c.rows, seconds * 1e6,
              gflops, gbps, 100 * (decode ? gbps / peaks.read_gbps : gflops / peaks.bf16_gflops));
}

int parse_number(const char* text) {
  return std::max(1, std::atoi(text));
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i], value = argv[i + 1];
    if (name == "--threads") options.threads = parse_number(argv[i + 1]);
    if (name == "--repeats") options.repeats = parse_number(argv[i + 1]);
    if (name == "--only") options.only = value;
    if (name == "--clock" && value == "cpu") options.clock = CLOCK_PROCESS_CPUTIME_ID;
    if (name == "--isa") {
      const auto isa = device::parse_isa(value);
      CHECK(isa.ok(), "{}", isa.error().message);
      options.isa = isa.value();
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  base::ThreadPool pool(options.threads);
  device::Stream stream(pool);
  const ops::Peaks peaks = ops::measure_peaks(stream);
  std::printf("%s, %d threads; bf16 dot products %.0f GFLOP/s, reads %.1f GB/s\n\n",
              device::isa_name(options.isa), options.threads, peaks.bf16_gflops, peaks.read_gbps);
  std::printf(
      "| shape | rows | context | sequences x rows | us | GFLOP/s | GB/s | of the bound |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  for (const Case& c : kCases) {
    if (!options.only.empty() && options.only != (c.kind == kDecode ? "decode" : "prompt"))
      continue;
    print_case(c, Bench(c).best_seconds(options, stream), peaks);
  }
  return 0;
}
