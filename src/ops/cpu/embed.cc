// Rows out of the panels: the values of reference::dequantize_row, bit for bit.
#include "ops/cpu/pack.h"

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

ScaleMin scale_min(PanelFormat format, const std::byte* header, int lane, int64_t column) {
  const int64_t block = column / kBlockColumns;
  const auto half = [lane](const std::byte* p) {
    return reference::half_to_float(read<uint16_t>(p + 2 * lane));
  };
  switch (format) {
    case PanelFormat::kInt4:
    case PanelFormat::kInt8:
      return {half(header + block * kHalfVectorBytes), 0};
    case PanelFormat::kInt4Min:
    case PanelFormat::kInt8Min:
      header += block * 2 * kHalfVectorBytes;
      return {half(header), half(header + kHalfVectorBytes)};
    case PanelFormat::kInt4Super:
    case PanelFormat::kInt8Super: {
      header += block / 8 * kSuperHeaderBytes;
      const std::byte* sub = header + 2 * kHalfVectorBytes + block % 8 * kPanelRows + lane;
      return {half(header) * std::to_integer<uint8_t>(sub[0]),
              half(header + kHalfVectorBytes) * std::to_integer<uint8_t>(sub[8 * kPanelRows])};
    }
    case PanelFormat::kInt8Sub16: {
      header += block / 8 * kSub16HeaderBytes;
      const int64_t sub = column % kSuperBlockColumns / 16;
      return {half(header) * read<int8_t>(header + kHalfVectorBytes + sub * kPanelRows + lane), 0};
    }
    default:
      return {};
  }
}

int quant(Layout layout, const std::byte* quants, int lane, int64_t column) {
  if (layout == Layout::kPanelInt8) {
    return read<int8_t>(quants + column / 2 * kHalfVectorBytes + 2 * lane + column % 2);
  }
  const auto word = read<uint32_t>(quants + (column / 8 * kPanelRows + lane) * 4);
  const int64_t pair = column % 8 / 2;
  return static_cast<int>(word >> (4 * pair + 16 * (column % 2)) & 15);
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
  const std::byte* quants = panel + layout.header_bytes;
  const int lane = static_cast<int>(row % kPanelRows);
  if (table.layout != Layout::kPanelInt4 && table.layout != Layout::kPanelInt8) {
    for (int64_t c = 0; c < table.cols; ++c) out[c] = plain(table.layout, quants, lane, c);
    return;
  }
  const int zero = layout.format == PanelFormat::kInt4 ? 8 : 0;
  for (int64_t begin = 0; begin < table.cols; begin += 16) {
    const ScaleMin s = scale_min(layout.format, panel, lane, begin);
    for (int64_t c = begin; c < begin + 16; ++c) {
      out[c] = s.scale * static_cast<float>(quant(table.layout, quants, lane, c) - zero) + s.min;
    }
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
    embed_row(table, layout, token, args.out + t * table.cols);
  });
}

}  // namespace ops::cpu
