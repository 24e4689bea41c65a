#include "ops/linear.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/reference/dequantize.h"

namespace ops::reference {
namespace {

// Columns dequantised at a time, a multiple of every block, and rows that share them: what fits a
// small array, so that nothing is allocated.
constexpr int64_t kColumns = 256;
constexpr int64_t kRows = 64;

const std::byte* row_of(const PackedMatrix& m, int64_t row) {
  return m.data.data() + row * core::row_bytes(m.source, m.cols);
}

// Output `n` of every row: one sum in double, columns in order.
void linear_output(const LinearArgs& args, const LinearOutput& output, int64_t n) {
  const PackedMatrix& w = *output.weight;
  const std::byte* bytes = row_of(w, n);
  for (int64_t first = 0; first < args.rows; first += kRows) {
    const int64_t count = std::min(kRows, args.rows - first);
    double sums[kRows] = {};
    for (int64_t begin = 0; begin < w.cols; begin += kColumns) {
      const int64_t columns = std::min(kColumns, w.cols - begin);
      float weights[kColumns];
      dequantize_row(w.source, bytes + core::row_bytes(w.source, begin), columns, weights);
      for (int64_t m = 0; m < count; ++m) {
        const float* x = args.x + (first + m) * args.x_stride + begin;
        for (int64_t k = 0; k < columns; ++k) sums[m] += double{x[k]} * double{weights[k]};
      }
    }
    for (int64_t m = 0; m < count; ++m) {
      float* y = output.y + (first + m) * output.y_stride + n;
      double sum = sums[m];
      if (output.bias != nullptr) sum += double{output.bias[n]};
      if (output.accumulate) sum += double{*y};
      *y = static_cast<float>(sum);
    }
  }
}

}  // namespace

base::Result<PackedMatrix> pack(device::Stream& stream, const WeightView& weight) {
  check_weight(weight);
  const int64_t bytes = core::row_bytes(weight.type, weight.cols);
  ASSIGN_OR_RETURN(device::Buffer data, device::Buffer::allocate(weight.rows * bytes, "a weight"));
  stream.pool().parallel_for(weight.rows, [&](int64_t row, int) {
    std::memcpy(data.data() + row * bytes, weight.data + file_row(weight, row) * bytes,
                static_cast<size_t>(bytes));
  });
  PackedMatrix packed;
  packed.source = weight.type;
  packed.layout = Layout::kRows;
  packed.rows = weight.rows;
  packed.cols = weight.cols;
  packed.data = std::move(data);
  return packed;
}

void linear(device::Stream& stream, const LinearArgs& args) {
  for (const LinearOutput& output : args.outputs) {
    CHECK(output.weight->layout == Layout::kRows);
    stream.pool().parallel_for(output.weight->rows,
                               [&](int64_t n, int) { linear_output(args, output, n); });
  }
}

int64_t linear_workspace_bytes(int64_t, int64_t) {
  return 0;
}

void embed(device::Stream&, const EmbedArgs& args) {
  const PackedMatrix& table = *args.table;
  CHECK(table.layout == Layout::kRows);
  float* out = args.out;
  for (int32_t token : args.tokens) {
    CHECK(token >= 0 && token < table.rows, "token {} of {}", token, table.rows);
    dequantize_row(table.source, row_of(table, token), table.cols, out);
    for (int64_t i = 0; i < table.cols; ++i) out[i] *= args.scale;
    out += table.cols;
  }
}

}  // namespace ops::reference
