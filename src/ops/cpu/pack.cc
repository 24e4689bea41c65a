// Weights into panels at load: each file byte is read once and no second copy is held.
#include "ops/cpu/pack.h"
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/linear.h"
#include "ops/reference/dequantize.h"

namespace ops::cpu {
namespace {

using core::DType;

PanelFormat format_of(DType type) {
  switch (type) {
    case DType::kF32:
      return PanelFormat::kFloat32;
    case DType::kF16:
      return PanelFormat::kFloat16;
    case DType::kBF16:
      return PanelFormat::kBFloat16;
    case DType::kQ4_0:
      return PanelFormat::kInt4;
    case DType::kQ4_1:
      return PanelFormat::kInt4Min;
    case DType::kQ4_K:
      return PanelFormat::kInt4Super;
    case DType::kQ8_0:
    case DType::kQ5_0:
      return PanelFormat::kInt8;
    case DType::kQ5_1:
      return PanelFormat::kInt8Min;
    case DType::kQ5_K:
      return PanelFormat::kInt8Super;
    case DType::kQ6_K:
      return PanelFormat::kInt8Sub16;
    case DType::kI8:
    case DType::kF8E4M3:
      break;  // of KV pages, never of weights
  }
  CHECK(false, "type {}", static_cast<int>(type));
  return PanelFormat::kFloat32;
}

Layout layout_of(PanelFormat format) {
  switch (format) {
    case PanelFormat::kInt4:
    case PanelFormat::kInt4Min:
    case PanelFormat::kInt4Super:
      return Layout::kPanelInt4;
    case PanelFormat::kInt8:
    case PanelFormat::kInt8Min:
    case PanelFormat::kInt8Super:
    case PanelFormat::kInt8Sub16:
      return Layout::kPanelInt8;
    case PanelFormat::kFloat32:
      return Layout::kPanelFloat32;
    case PanelFormat::kFloat16:
      return Layout::kPanelFloat16;
    case PanelFormat::kBFloat16:
      return Layout::kPanelBFloat16;
  }
  return Layout::kPanelFloat32;
}

int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

uint8_t byte_at(const std::byte* p, int64_t i) {
  return std::to_integer<uint8_t>(p[i]);
}

template <typename T>
T read(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

template <typename T>
void write(std::byte* p, T value) {
  std::memcpy(p, &value, sizeof(T));
}

// One block of a row as the file has it, taken apart. See ops/reference/dequantize.h for the
// layouts.
struct Block {
  int8_t q[256];      // what the scale multiplies (Q4_0: before subtracting 8)
  uint16_t d = 0;     // f16 bits
  uint16_t m = 0;     // f16 bits of m, or of -dmin
  uint8_t scale[16];  // K-quants: 6-bit scales for each 32, or i8 for each 16
  uint8_t min[8];
};

constexpr uint16_t kHalfSign = 0x8000;

void split_nibbles(const std::byte* qs, int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = static_cast<int8_t>(byte_at(qs, j) & 15);
    q[j + 16] = static_cast<int8_t>(byte_at(qs, j) >> 4);
  }
}

// Q5_0 and Q5_1: nibbles, a fifth bit each from `fifth`, less `zero`.
void split_5bit(const std::byte* qs, uint32_t fifth, int zero, int8_t* q) {
  split_nibbles(qs, q);
  for (int j = 0; j < 32; ++j) {
    q[j] = static_cast<int8_t>((q[j] | static_cast<int>(fifth >> j & 1) << 4) - zero);
  }
}

// Q4_K and Q5_K. `fifth` is null in Q4_K.
void split_45k(const std::byte* b, const std::byte* fifth, const std::byte* qs, Block& out) {
  out.d = read<uint16_t>(b);
  out.m = read<uint16_t>(b + 2) ^ kHalfSign;
  const std::byte* packed = b + 4;
  for (int j = 0; j < 4; ++j) {
    const int scale = byte_at(packed, j), min = byte_at(packed, j + 4),
              low = byte_at(packed, j + 8);
    out.scale[j] = static_cast<uint8_t>(scale & 63);
    out.min[j] = static_cast<uint8_t>(min & 63);
    out.scale[j + 4] = static_cast<uint8_t>((low & 15) | (scale >> 6) << 4);
    out.min[j + 4] = static_cast<uint8_t>((low >> 4) | (min >> 6) << 4);
  }
  for (int j = 0; j < 8; ++j) {
    for (int l = 0; l < 32; ++l) {
      int q = byte_at(qs, j / 2 * 32 + l) >> (j % 2 * 4) & 15;
      if (fifth != nullptr) q |= (byte_at(fifth, l) >> j & 1) << 4;
      out.q[j * 32 + l] = static_cast<int8_t>(q);
    }
  }
}

void split_6k(const std::byte* b, Block& out) {
  std::memcpy(out.scale, b + 192, 16);
  out.d = read<uint16_t>(b + 208);
  for (int half = 0; half < 2; ++half) {
    const std::byte* ql = b + half * 64;
    const std::byte* qh = b + 128 + half * 32;
    int8_t* q = out.q + half * 128;
    for (int l = 0; l < 32; ++l) {
      const int high = byte_at(qh, l);
      for (int g = 0; g < 4; ++g) {
        const int low = byte_at(ql, g % 2 * 32 + l) >> (g / 2 * 4) & 15;
        q[g * 32 + l] = static_cast<int8_t>((low | (high >> (2 * g) & 3) << 4) - 32);
      }
    }
  }
}

void split_block(DType type, const std::byte* b, Block& out) {
  out.d = read<uint16_t>(b);
  switch (type) {
    case DType::kQ8_0:
      std::memcpy(out.q, b + 2, 32);
      return;
    case DType::kQ4_0:
      split_nibbles(b + 2, out.q);
      return;
    case DType::kQ4_1:
      out.m = read<uint16_t>(b + 2);
      split_nibbles(b + 4, out.q);
      return;
    case DType::kQ5_0:
      split_5bit(b + 6, read<uint32_t>(b + 2), 16, out.q);
      return;
    case DType::kQ5_1:
      out.m = read<uint16_t>(b + 2);
      split_5bit(b + 8, read<uint32_t>(b + 4), 0, out.q);
      return;
    case DType::kQ4_K:
      split_45k(b, nullptr, b + 16, out);
      return;
    case DType::kQ5_K:
      split_45k(b, b + 16, b + 48, out);
      return;
    case DType::kQ6_K:
      split_6k(b, out);
      return;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kI8:
    case DType::kF8E4M3:
      break;
  }
  CHECK(false, "type {} has no blocks", static_cast<int>(type));
}

// Writes what the header of a group holds of a file's block, for one lane. `b` is the block's place
// in the group, 0 in the K-quants.
void write_header(PanelFormat format, std::byte* header, int64_t b, int lane, const Block& block) {
  header += b * (has_min(format) ? 2 : 1) * kHalfVectorBytes;
  write(header + 2 * lane, block.d);
  std::byte* next = header + kHalfVectorBytes;
  switch (format) {
    case PanelFormat::kInt4Min:
    case PanelFormat::kInt8Min:
      write(next + 2 * lane, block.m);
      return;
    case PanelFormat::kInt4Super:
    case PanelFormat::kInt8Super:
      write(next + 2 * lane, block.m);
      next += kHalfVectorBytes;
      for (int j = 0; j < 8; ++j) {
        write(next + j * kPanelRows + lane, block.scale[j]);
        write(next + (8 + j) * kPanelRows + lane, block.min[j]);
      }
      return;
    case PanelFormat::kInt8Sub16:
      for (int j = 0; j < 16; ++j) write(next + j * kPanelRows + lane, block.scale[j]);
      return;
    default:
      return;
  }
}

void write_quants(PanelFormat format, std::byte* quants, int lane, const int8_t* q,
                  int64_t columns) {
  if (is_nibbles(format)) {
    for (int64_t c = 0; c < columns; c += 8, q += 8) {
      uint32_t word = 0;
      for (int j = 0; j < 4; ++j) {
        word |= static_cast<uint32_t>(q[2 * j]) << (4 * j) | static_cast<uint32_t>(q[2 * j + 1])
                                                                 << (16 + 4 * j);
      }
      write(quants + c / 8 * 4 * kPanelRows + 4 * lane, word);
    }
    return;
  }
  for (int64_t c = 0; c < columns; c += 2) {
    std::memcpy(quants + c * kPanelRows + 2 * lane, q + c, 2);
  }
}

// Values of `size` bytes, `step` of them side by side in a lane.
template <typename T, int kStep>
void write_plain(std::byte* panel, int lane, const std::byte* row, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c) {
    const int64_t at = c / kStep * kStep * kPanelRows + lane * kStep + c % kStep;
    write(panel + at * static_cast<int64_t>(sizeof(T)),
          read<T>(row + c * static_cast<int64_t>(sizeof(T))));
  }
}

void pack_row(const WeightView& w, const PanelLayout& layout, std::byte* panel, int lane,
              const std::byte* row) {
  if (w.type == DType::kF32) return write_plain<uint32_t, 1>(panel, lane, row, w.cols);
  if (w.type == DType::kF16) return write_plain<uint16_t, 1>(panel, lane, row, w.cols);
  if (w.type == DType::kBF16) return write_plain<uint16_t, 2>(panel, lane, row, w.cols);
  const int64_t elements = core::info(w.type).block_elements,
                bytes = core::info(w.type).block_bytes;
  const int64_t num_blocks = w.cols / kBlockColumns;
  for (int64_t first = 0; first < num_blocks; first += kGroupBlocks) {
    const int64_t blocks = std::min<int64_t>(kGroupBlocks, num_blocks - first);
    std::byte* quants = panel + group_header_bytes(layout.format, blocks);
    for (int64_t b = 0; b < blocks; b += elements / kBlockColumns, row += bytes) {
      Block block;
      split_block(w.type, row, block);
      write_header(layout.format, panel, b, lane, block);
      write_quants(layout.format, quants + b * quant_block_bytes(layout.format), lane, block.q,
                   elements);
    }
    panel += group_bytes(layout.format, blocks);
  }
}

}  // namespace

PanelLayout panel_layout(DType type, int64_t rows, int64_t cols) {
  PanelLayout layout;
  layout.format = format_of(type);
  layout.num_panels = (rows + kPanelRows - 1) / kPanelRows;
  const int64_t blocks = cols / kBlockColumns;
  switch (layout.format) {
    case PanelFormat::kFloat32:
      layout.panel_bytes = cols * kPanelRows * 4;
      break;
    case PanelFormat::kFloat16:
      layout.panel_bytes = round_up(cols * kPanelRows * 2, 64);
      break;
    case PanelFormat::kBFloat16:
      layout.panel_bytes = round_up(cols, 2) * kPanelRows * 2;
      break;
    default:
      layout.panel_bytes = blocks / kGroupBlocks * group_bytes(layout.format, kGroupBlocks);
      if (blocks % kGroupBlocks != 0) {
        layout.panel_bytes += group_bytes(layout.format, blocks % kGroupBlocks);
      }
  }
  return layout;
}

base::Result<PackedMatrix> pack(device::Stream& stream, const WeightView& weight) {
  check_weight(weight);
  const int64_t row_bytes = core::row_bytes(weight.type, weight.cols);
  const PanelLayout layout = panel_layout(weight.type, weight.rows, weight.cols);
  ASSIGN_OR_RETURN(device::Buffer data,
                   device::Buffer::allocate(layout.num_panels * layout.panel_bytes, "a weight"));
  stream.pool().parallel_for(layout.num_panels, [&](int64_t p, int) {
    const int64_t first = p * kPanelRows;
    const int lanes = static_cast<int>(std::min<int64_t>(kPanelRows, weight.rows - first));
    for (int lane = 0; lane < lanes; ++lane) {
      pack_row(weight, layout, data.data() + p * layout.panel_bytes, lane,
               weight.data + file_row(weight, first + lane) * row_bytes);
    }
  });
  PackedMatrix packed;
  packed.source = weight.type;
  packed.layout = layout_of(layout.format);
  packed.rows = weight.rows;
  packed.cols = weight.cols;
  packed.data = std::move(data);
  return packed;
}

}  // namespace ops::cpu
