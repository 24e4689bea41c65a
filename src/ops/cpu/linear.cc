// Linear on the CPU, whatever the instruction set: cuts a call into ranges for the pool.
#include "ops/linear.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/pack.h"

namespace ops::cpu {
namespace {

int64_t divide_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit;
}
int64_t round_up(int64_t n, int64_t unit) {
  return divide_up(n, unit) * unit;
}

ActivationKind kind_of(const LinearKernels& kernels, Layout layout) {
  switch (layout) {
    case Layout::kPanelInt4:
    case Layout::kPanelInt8:
      return ActivationKind::kInt16;
    case Layout::kPanelBFloat16:
      return kernels.bfloat16_activations;
    default:
      return ActivationKind::kFloat32;
  }
}

// A bump pointer over the caller's workspace.
class Workspace {
 public:
  explicit Workspace(std::span<std::byte> bytes) : left_(bytes) {}
  template <typename T>
  T* take(int64_t count) {
    const int64_t bytes = round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    CHECK(bytes <= static_cast<int64_t>(left_.size()), "workspace too small for {} bytes", bytes);
    T* p = reinterpret_cast<T*>(left_.data());
    left_ = left_.subspan(static_cast<size_t>(bytes));
    return p;
  }

 private:
  std::span<std::byte> left_;
};

Activations place_activations(const LinearKernels& kernels, ActivationKind kind,
                              const LinearArgs& args, int64_t cols) {
  Activations x;
  x.kind = kind;
  x.rows = args.rows;
  x.cols = cols;
  x.num_tiles = divide_up(args.rows, kernels.tile_rows);
  Workspace workspace(args.workspace);
  const int64_t padded = round_up(cols, 2), blocks = cols / kBlockColumns;
  switch (kind) {
    case ActivationKind::kInt16:
      x.words = workspace.take<uint32_t>(args.rows * cols / 2);
      x.scales = workspace.take<float>(args.rows * blocks);
      x.sums = workspace.take<float>(args.rows * blocks);
      x.offsets = workspace.take<int32_t>(args.rows * blocks);
      break;
    case ActivationKind::kFloat32:
      x.floats = workspace.take<float>(args.rows * padded);
      break;
    case ActivationKind::kBFloat16:
      x.words = workspace.take<uint32_t>(args.rows * padded / 2);
      break;
  }
  return x;
}

// From this many values on, converting the activations is worth waking the pool (a loop costs about
// a microsecond, a value about a third of a nanosecond).
constexpr int64_t kParallelValues = 8192;

void prepare(const LinearKernels& kernels, device::Stream& stream, const LinearArgs& args,
             const Activations& x) {
  const auto tile = [&](int64_t t, int) { kernels.prepare_tile(args.x, args.x_stride, t, x); };
  if (x.rows * x.cols >= kParallelValues) {
    stream.pool().parallel_for(x.num_tiles, tile);
  } else {
    for (int64_t t = 0; t < x.num_tiles; ++t) tile(t, 0);
  }
}

LinearJob job_of(const LinearOutput& output) {
  LinearJob job;
  const PackedMatrix& w = *output.weight;
  job.layout = panel_layout(w.source, w.rows, w.cols);
  job.panels = w.data.data();
  job.outputs = w.rows;
  job.bias = output.bias;
  job.y = output.y;
  job.y_stride = output.y_stride;
  job.accumulate = output.accumulate;
  return job;
}

// The panels of all outputs that read one kind of activations, as one list.
class PanelList {
 public:
  PanelList(const LinearKernels& kernels, const LinearArgs& args, ActivationKind kind)
      : kernels_(kernels), args_(args), kind_(kind) {
    for (const LinearOutput& output : args_.outputs) count_ += panels_of(output);
  }
  int64_t count() const { return count_; }

  // Runs panels [begin, end) of the list for the tiles of `range`.
  void run(const Activations& x, int64_t begin, int64_t end, LinearRange range) const {
    int64_t first = 0;  // panel of the list at which the output starts
    for (const LinearOutput& output : args_.outputs) {
      const int64_t panels = panels_of(output);
      range.panel_begin = std::max(begin, first) - first;
      range.panel_end = std::min(end, first + panels) - first;
      first += panels;
      if (range.panel_begin < range.panel_end) kernels_.run(job_of(output), x, range);
    }
  }

 private:
  int64_t panels_of(const LinearOutput& output) const {
    if (kind_of(kernels_, output.weight->layout) != kind_) return 0;
    return divide_up(output.weight->rows, kPanelRows);
  }

  const LinearKernels& kernels_;
  const LinearArgs& args_;
  ActivationKind kind_;
  int64_t count_ = 0;
};

// Activations that a thread keeps in its L2 cache (1 MiB on the processors we know) while panels
// stream past.
constexpr int64_t kRangeBytes = 384 << 10;
// Pieces for each thread. More of them even out what the machine does beside us; fewer restart the
// prefetched stream of weights less often (gate and up of 1536 x 576 Q4_1, one row, 2 threads: 17.5
// us with 2, 20.6 with 3, 22.8 with 6).
constexpr int64_t kFewRowsPieces = 2;
constexpr int64_t kManyRowsPieces = 8;

// A piece is a run of neighbouring panels for a range of tiles.
void run_pieces(const LinearKernels& kernels, device::Stream& stream, const LinearArgs& args,
                const Activations& x) {
  const PanelList panels(kernels, args, x.kind);
  const int64_t row_bytes = x.cols * (x.kind == ActivationKind::kFloat32 ? 4 : 2);
  const int64_t tiles_max = std::max<int64_t>(1, kRangeBytes / (row_bytes * kernels.tile_rows));
  const int64_t ranges = divide_up(x.num_tiles, tiles_max);
  const int64_t tiles = divide_up(x.num_tiles, ranges);
  const int64_t pieces =
      stream.pool().num_threads() * (x.num_tiles == 1 ? kFewRowsPieces : kManyRowsPieces);
  const int64_t run = divide_up(panels.count(), divide_up(pieces, ranges));
  const int64_t runs = divide_up(panels.count(), std::max<int64_t>(run, 1));
  stream.pool().parallel_for(ranges * runs, [&](int64_t i, int) {
    LinearRange range;
    range.tile_begin = i / runs * tiles;
    range.tile_end = std::min(range.tile_begin + tiles, x.num_tiles);
    const int64_t begin = i % runs * run;
    if (range.tile_begin < range.tile_end) {
      panels.run(x, begin, std::min(begin + run, panels.count()), range);
    }
  });
}

void check_args(const LinearArgs& args, int64_t cols) {
  CHECK(args.x_stride >= cols, "stride {} of {} columns", args.x_stride, cols);
  CHECK(reinterpret_cast<uintptr_t>(args.workspace.data()) % 64 == 0, "workspace not aligned");
  for (const LinearOutput& output : args.outputs) {
    CHECK(output.weight->layout != Layout::kRows, "packed by another back end");
    CHECK(output.weight->cols == cols, "{} columns beside {}", output.weight->cols, cols);
    CHECK(output.y_stride >= output.weight->rows, "stride {} of {} outputs", output.y_stride,
          output.weight->rows);
  }
}

void run_linear(const LinearKernels& kernels, device::Stream& stream, const LinearArgs& args) {
  if (args.rows == 0 || args.outputs.empty()) return;
  const int64_t cols = args.outputs[0].weight->cols;
  check_args(args, cols);
  for (ActivationKind kind :
       {ActivationKind::kInt16, ActivationKind::kFloat32, ActivationKind::kBFloat16}) {
    const bool wanted = std::any_of(args.outputs.begin(), args.outputs.end(), [&](const auto& o) {
      return kind_of(kernels, o.weight->layout) == kind;
    });
    if (!wanted) continue;
    const Activations x = place_activations(kernels, kind, args, cols);
    prepare(kernels, stream, args, x);
    run_pieces(kernels, stream, args, x);
  }
}

}  // namespace

int64_t linear_workspace_bytes(int64_t rows, int64_t cols) {
  // f32 values are the largest form; 16-bit ones with three words a block fit in less, up to
  // padding.
  return round_up(rows * round_up(cols, 2) * 4, 64) + 4 * 64;
}

}  // namespace ops::cpu

namespace ops {

void avx2::linear(device::Stream& stream, const LinearArgs& args) {
  cpu::run_linear(cpu::kLinearAvx2, stream, args);
}

void avx512::linear(device::Stream& stream, const LinearArgs& args) {
  cpu::run_linear(cpu::kLinearAvx512, stream, args);
}

}  // namespace ops
