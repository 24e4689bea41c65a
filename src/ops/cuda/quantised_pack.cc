// GGUF's blocks into the units of a GPU, on the host.
#include <array>
#include <cstring>

#include "base/check.h"
#include "ops/cuda/quantised.h"
#include "ops/cuda/quantised_unit.h"

namespace ops::cuda {
namespace {

// An output's part of a unit: codes as unsigned bytes (Q8_0: two's complement) and its scales in
// the order in which the unit has them.
struct Part {
  std::array<uint8_t, kUnitInputs> codes{};
  std::array<uint8_t, 16> scales{};
};

uint8_t byte_at(const std::byte* p, int i) {
  return std::to_integer<uint8_t>(p[i]);
}

// 32 nibbles: the low ones of 16 bytes, then the high ones.
void read_nibbles(const std::byte* qs, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = byte_at(qs, j) & 15;
    codes[j + 16] = byte_at(qs, j) >> 4;
  }
}

void read_q8_0(const std::byte* block, int group, Part* part) {
  std::memcpy(part->codes.data() + group * 32, block + 2, 32);
  std::memcpy(part->scales.data() + group * 2, block, 2);
}

// Q4_0 and Q4_1: `scale_bytes` of scales before the codes.
void read_q4(const std::byte* block, int group, int scale_bytes, Part* part) {
  read_nibbles(block + scale_bytes, part->codes.data() + group * 32);
  std::memcpy(part->scales.data() + group * scale_bytes, block, static_cast<size_t>(scale_bytes));
}

// Half `half` of 256: scales d and dmin, four scales, four minima.
void read_q4_k(const std::byte* block, int half, Part* part) {
  std::memcpy(part->scales.data(), block, 4);
  const std::byte* packed = block + 4;
  for (int group = 0; group < kUnitGroups; ++group) {
    int scale = byte_at(packed, group) & 63, min = byte_at(packed, group + 4) & 63;
    if (half == 1) {  // four low bits here, the two high ones on top of the first half's
      scale = (byte_at(packed, group + 8) & 15) | byte_at(packed, group) >> 6 << 4;
      min = byte_at(packed, group + 8) >> 4 | byte_at(packed, group + 4) >> 6 << 4;
    }
    part->scales[static_cast<size_t>(4 + group)] = static_cast<uint8_t>(scale);
    part->scales[static_cast<size_t>(8 + group)] = static_cast<uint8_t>(min);
    const std::byte* qs = block + 16 + half * 64 + group / 2 * 32;
    for (int l = 0; l < 32; ++l) {
      part->codes[static_cast<size_t>(group * 32 + l)] =
          static_cast<uint8_t>(byte_at(qs, l) >> (group % 2 * 4) & 15);
    }
  }
}

// Half `half` of 256: eight scales, d.
void read_q6_k(const std::byte* block, int half, Part* part) {
  std::memcpy(part->scales.data(), block + 192 + half * 8, 8);
  std::memcpy(part->scales.data() + 8, block + 208, 2);
  const std::byte* low = block + half * 64;
  const std::byte* high = block + 128 + half * 32;
  for (int i = 0; i < kUnitInputs; ++i) {
    const int group = i / 32, l = i % 32;
    const int code = (byte_at(low, group % 2 * 32 + l) >> (group / 2 * 4) & 15) |
                     (byte_at(high, l) >> (2 * group) & 3) << 4;
    part->codes[static_cast<size_t>(i)] = static_cast<uint8_t>(code);
  }
}

Part read_part(core::DType type, const std::byte* row, int64_t cols, int64_t chunk) {
  Part part;
  const core::DTypeInfo& info = core::info(type);
  if (info.block_elements == 256) {
    const std::byte* block = row + chunk / 2 * info.block_bytes;
    const int half = static_cast<int>(chunk % 2);
    type == core::DType::kQ4_K ? read_q4_k(block, half, &part) : read_q6_k(block, half, &part);
    return part;
  }
  for (int group = 0; group < kUnitGroups; ++group) {
    const int64_t index = chunk * kUnitGroups + group;
    if (index * 32 >= cols) break;
    const std::byte* block = row + index * info.block_bytes;
    if (type == core::DType::kQ8_0) {
      read_q8_0(block, group, &part);
    } else {
      read_q4(block, group, type == core::DType::kQ4_0 ? 2 : 4, &part);
    }
  }
  return part;
}

void write_codes(core::DType type, const Part& part, int output, std::byte* unit) {
  for (int group = 0; group < kUnitGroups; ++group) {
    for (int c = 0; c < 4; ++c) {
      uint64_t bytes = 0;
      uint32_t low = 0, high = 0;
      for (int i = 0; i < 8; ++i) {
        const uint32_t code = part.codes[static_cast<size_t>(group * 32 + input_of(c, i))];
        bytes |= uint64_t{code} << byte_bit(i);
        low |= (code & 15) << nibble_bit(i);
        high |= code >> 4 << high_bit(group, i);
      }
      if (type == core::DType::kQ8_0) {
        std::memcpy(unit + byte_words(output, group, c), &bytes, 8);
        continue;
      }
      std::memcpy(unit + nibble_word(output, group, c), &low, 4);
      if (type != core::DType::kQ6_K) continue;
      uint32_t both = 0;
      std::memcpy(&both, unit + high_word(output, group, c), 4);
      both |= high;
      std::memcpy(unit + high_word(output, group, c), &both, 4);
    }
  }
}

void write_scales(core::DType type, const Part& part, int output, std::byte* unit) {
  std::byte* scales = unit + unit_scales(type);
  const uint8_t* from = part.scales.data();
  switch (type) {
    case core::DType::kQ4_1:
      std::memcpy(scales + output * 16, from, 16);
      return;
    case core::DType::kQ4_K:
      for (int i = 0; i < 3; ++i) std::memcpy(scales + i * 64 + output * 4, from + i * 4, 4);
      return;
    case core::DType::kQ6_K:
      std::memcpy(scales + output * 8, from, 8);
      std::memcpy(scales + 128 + output * 2, from + 8, 2);
      return;
    default:
      std::memcpy(scales + output * 8, from, 8);
  }
}

}  // namespace

bool can_stay_quantised(core::DType type) {
  return unit_bytes(type) > 0;
}

int64_t quantised_bytes(core::DType type, int64_t rows, int64_t cols) {
  return (rows + kUnitOutputs - 1) / kUnitOutputs * ((cols + kUnitInputs - 1) / kUnitInputs) *
         unit_bytes(type);
}

void pack_quantised(core::DType type, std::span<const std::byte* const, 16> rows, int64_t cols,
                    std::byte* out) {
  CHECK(can_stay_quantised(type) && cols % core::info(type).block_elements == 0, "{} of {}", cols,
        core::info(type).name);
  std::memset(out, 0, static_cast<size_t>(quantised_bytes(type, kUnitOutputs, cols)));
  for (int64_t chunk = 0; chunk * kUnitInputs < cols; ++chunk, out += unit_bytes(type)) {
    for (int output = 0; output < kUnitOutputs; ++output) {
      const std::byte* row = rows[static_cast<size_t>(output)];
      if (row == nullptr) continue;
      const Part part = read_part(type, row, cols, chunk);
      write_codes(type, part, output, out);
      write_scales(type, part, output, out);
    }
  }
}

}  // namespace ops::cuda
