// Rows out of the panels: the values of reference::dequantize_row, bit for bit.
#include "ops/cpu/pack.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/linear.h"
#include "ops/reference/dequantize.h"

namespace ops::cpu {
namespace {

template <typename T>
T read(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// Factor and addend of one lane in 16 columns: value = scale * q + min.
struct ScaleMin {
  float scale = 0;
  float min = 0;
};

// Of block `b` of a group, columns [16 half, 16 half + 16).
ScaleMin scale_min(PanelFormat format, const std::byte* header, int lane, int64_t b, int half) {
  const auto value = [lane](const std::byte* p) {
    return reference::half_to_float(read<uint16_t>(p + 2 * lane));
  };
  if (is_super(format)) {
    const std::byte* sub = header + 2 * kHalfVectorBytes + b * kPanelRows + lane;
    return {value(header) * read<uint8_t>(sub),
            value(header + kHalfVectorBytes) * read<uint8_t>(sub + kGroupBlocks * kPanelRows)};
  }
  if (format == PanelFormat::kInt8Sub16) {
    const std::byte* sub = header + kHalfVectorBytes + (2 * b + half) * kPanelRows + lane;
    return {value(header) * read<int8_t>(sub), 0};
  }
  if (has_min(format)) {
    header += 2 * b * kHalfVectorBytes;
    return {value(header), value(header + kHalfVectorBytes)};
  }
  return {value(header + b * kHalfVectorBytes), 0};
}

// Column `column` of a block, before scaling.
int quant(PanelFormat format, const std::byte* quants, int lane, int column) {
  if (!is_nibbles(format)) {
    return read<int8_t>(quants + column / 2 * kHalfVectorBytes + 2 * lane + column % 2);
  }
  const auto word = read<uint32_t>(quants + (column / 8 * kPanelRows + lane) * 4);
  const int pair = column % 8 / 2;
  const int q = static_cast<int>(word >> (4 * pair + 16 * (column % 2)) & 15);
  return format == PanelFormat::kInt4 ? q - 8 : q;
}

void embed_group(PanelFormat format, const std::byte* group, int64_t blocks, int lane, float* out) {
  const std::byte* quants = group + group_header_bytes(format, blocks);
  for (int64_t b = 0; b < blocks; ++b, quants += quant_block_bytes(format)) {
    for (int half = 0; half < 2; ++half) {
      const ScaleMin s = scale_min(format, group, lane, b, half);
      for (int c = 16 * half; c < 16 * half + 16; ++c) {
        *out++ = s.scale * static_cast<float>(quant(format, quants, lane, c)) + s.min;
      }
    }
  }
}

float plain(Layout layout, const std::byte* panel, int lane, int64_t column) {
  switch (layout) {
    case Layout::kPanelFloat32:
      return read<float>(panel + (column * kPanelRows + lane) * 4);
    case Layout::kPanelFloat16:
      return reference::half_to_float(read<uint16_t>(panel + (column * kPanelRows + lane) * 2));
    default:
      return reference::bfloat16_to_float(
          read<uint16_t>(panel + (column / 2 * kPanelRows + lane) * 4 + column % 2 * 2));
  }
}

void embed_row(const PackedMatrix& table, const PanelLayout& layout, int64_t row, float* out) {
  const std::byte* panel = table.data.data() + row / kPanelRows * layout.panel_bytes;
  const int lane = static_cast<int>(row % kPanelRows);
  if (table.layout != Layout::kPanelInt4 && table.layout != Layout::kPanelInt8) {
    for (int64_t c = 0; c < table.cols; ++c) out[c] = plain(table.layout, panel, lane, c);
    return;
  }
  const int64_t num_blocks = table.cols / kBlockColumns;
  for (int64_t first = 0; first < num_blocks; first += kGroupBlocks) {
    const int64_t blocks = std::min<int64_t>(kGroupBlocks, num_blocks - first);
    embed_group(layout.format, panel, blocks, lane, out + first * kBlockColumns);
    panel += group_bytes(layout.format, blocks);
  }
}

}  // namespace

void embed(device::Stream& stream, const EmbedArgs& args) {
  const PackedMatrix& table = *args.table;
  CHECK(table.layout != Layout::kRows);
  const PanelLayout layout = panel_layout(table.source, table.rows, table.cols);
  stream.pool().parallel_for(static_cast<int64_t>(args.tokens.size()), [&](int64_t t, int) {
    const int64_t token = args.tokens[static_cast<size_t>(t)];
    CHECK(token >= 0 && token < table.rows, "token {} of {}", token, table.rows);
    float* const out = args.out + t * table.cols;
    embed_row(table, layout, token, out);
    for (int64_t i = 0; i < table.cols; ++i) out[i] *= args.scale;
  });
}

}  // namespace ops::cpu
