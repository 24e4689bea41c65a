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

// The panels of all outputs that read one kind of activations, as one list of units: `unit_panels`
// consecutive panels of one output (fewer at its end).
class Units {
 public:
  Units(const LinearKernels& kernels, const LinearArgs& args, ActivationKind kind,
        int64_t unit_panels)
      : kernels_(kernels), args_(args), kind_(kind), unit_panels_(unit_panels) {
    for (const LinearOutput& output : args_.outputs) count_ += units_of(output);
  }
  int64_t count() const { return count_; }

  // Runs units [begin, end) for the given tiles.
  void run(const Activations& x, int64_t begin, int64_t end, LinearRange range) const {
    int64_t first = 0;  // unit at which the output starts
    for (const LinearOutput& output : args_.outputs) {
      const int64_t units = units_of(output);
      const int64_t from = std::max(begin, first) - first,
                    to = std::min(end, first + units) - first;
      first += units;
      if (from >= to) continue;
      const LinearJob job = job_of(output);
      const int64_t panel_end = std::min(to * unit_panels_, job.layout.num_panels);
      for (int64_t panel = from * unit_panels_; panel < panel_end; panel += kRangePanels) {
        range.panel_begin = panel;
        range.panel_end = std::min<int64_t>(panel + kRangePanels, panel_end);
        kernels_.run(job, x, range);
      }
    }
  }

 private:
  int64_t units_of(const LinearOutput& output) const {
    if (kind_of(kernels_, output.weight->layout) != kind_) return 0;
    return divide_up(divide_up(output.weight->rows, kPanelRows), unit_panels_);
  }
  static LinearJob job_of(const LinearOutput& output) {
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

  const LinearKernels& kernels_;
  const LinearArgs& args_;
  ActivationKind kind_;
  int64_t unit_panels_;
  int64_t count_ = 0;
};

// Few rows: bound by reading panels, so a thread takes runs of neighbouring panels. Several runs a
// thread even out what the machine does beside us.
void run_few_rows(const LinearKernels& kernels, device::Stream& stream, const LinearArgs& args,
                  const Activations& x) {
  constexpr int64_t kRunsPerThread = 4;
  const Units units(kernels, args, x.kind, 1);
  const int64_t run = divide_up(units.count(), kRunsPerThread * stream.pool().num_threads());
  stream.pool().parallel_for(
      divide_up(units.count(), std::max<int64_t>(run, 1)), [&](int64_t i, int) {
        units.run(x, i * run, std::min((i + 1) * run, units.count()), {0, 0, 0, x.num_tiles});
      });
}

// Many rows: a thread takes a few panels and up to kRangeRows rows, which its L2 cache holds.
void run_many_rows(const LinearKernels& kernels, device::Stream& stream, const LinearArgs& args,
                   const Activations& x) {
  const Units units(kernels, args, x.kind, kRangePanels);
  const int64_t row_ranges = divide_up(x.num_tiles, kRangeRows / kernels.tile_rows);
  const int64_t tiles = divide_up(x.num_tiles, row_ranges);
  stream.pool().parallel_for(row_ranges * units.count(), [&](int64_t i, int) {
    const int64_t begin = i / units.count() * tiles, unit = i % units.count();
    const int64_t end = std::min(begin + tiles, x.num_tiles);
    if (begin < end) units.run(x, unit, unit + 1, {0, 0, begin, end});
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
    if (x.num_tiles <= kernels.direct_tiles) {
      run_few_rows(kernels, stream, args, x);
    } else {
      run_many_rows(kernels, stream, args, x);
    }
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
