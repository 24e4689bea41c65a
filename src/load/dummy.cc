#include "load/dummy.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/sizes.h"
#include "load/expected_tensors.h"

namespace load {
namespace {

using base::Code;
using base::Result;

constexpr float kBiasScale = 0.02f;

uint16_t to_bfloat16(float value) {  // rounds to nearest, ties to even; value is finite
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// A counter and a mixer: 64 well-mixed bits a call (splitmix64).
uint64_t next_random(uint64_t& state) {
  state += 0x9E3779B97F4A7C15;
  uint64_t x = state;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

// 4096 draws of a normal distribution, scaled: drawing one of them costs 12 random bits and a look
// at the first-level cache.
using Draws = std::array<uint16_t, 4096>;

Draws normal_draws(float scale) {
  Draws draws;
  uint64_t state = 1;
  for (uint16_t& draw : draws) {
    float sum = 0;  // of 12 uniforms: variance 1
    for (int i = 0; i < 12; ++i) {
      sum += static_cast<float>(next_random(state) >> 40) * 0x1p-24f - 0.5f;
    }
    draw = to_bfloat16(sum * scale);
    if ((draw & 0x7FFF) == 0) draw = to_bfloat16(scale);
  }
  return draws;
}

void fill(std::span<std::byte> bytes, float scale, uint64_t state) {
  const Draws draws = normal_draws(scale);
  size_t at = 0;
  while (at < bytes.size()) {
    const uint64_t bits = next_random(state);
    uint16_t five[5];
    for (int i = 0; i < 5; ++i) five[i] = draws[bits >> (12 * i) & 4095];
    const size_t n = std::min(sizeof(five), bytes.size() - at);
    std::memcpy(bytes.data() + at, five, n);
    at += n;
  }
}

void fill_ones(std::span<std::byte> bytes) {
  const uint16_t one = to_bfloat16(1.0f);
  for (size_t at = 0; at < bytes.size(); at += sizeof(one)) {
    std::memcpy(bytes.data() + at, &one, sizeof(one));
  }
}

uint64_t hash(const std::string& name,
              uint64_t seed) {  // FNV-1a: each tensor has a stream of its own
  uint64_t h = 0xCBF29CE484222325 ^ seed;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return h;
}

// A quantised type's block with its scales: what differs between blocks are codes. `deviation`: the
// codes' own times what the block multiplies scale d by.
struct BlockShape {
  float deviation;
  int32_t code_begin, code_end;  // bytes of random codes
};

BlockShape block_shape(core::DType type) {
  switch (type) {
    case core::DType::kQ8_0:
      return {73.9f, 2, 34};
    case core::DType::kQ4_1:
      return {4.61f, 4, 20};
    case core::DType::kQ4_K:
      return {4.61f * 8, 16, 144};
    case core::DType::kQ6_K:
      return {18.47f * 4, 0, 192};
    default:  // Q4_0
      return {4.61f, 2, 18};
  }
}

// REQUIRES: 2^-14 <= |value| < 2^16.
uint16_t to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = (bits >> 23 & 0xFF) - 127 + 15;
  return static_cast<uint16_t>(bits >> 16 & 0x8000) |
         static_cast<uint16_t>(exponent << 10 | (bits >> 13 & 0x3FF));
}

void set_half(std::byte* at, float value) {
  const uint16_t half = to_half(value);
  std::memcpy(at, &half, sizeof(half));
}

// A block whose codes are zeros.
std::vector<std::byte> empty_block(core::DType type, float scale) {
  std::vector<std::byte> block(static_cast<size_t>(core::info(type).block_bytes));
  const float d = std::max(scale / block_shape(type).deviation, 0x1p-14f);
  set_half(&block[type == core::DType::kQ6_K ? 208 : 0], d);
  if (type == core::DType::kQ4_1) set_half(&block[2], -7.5f * d);
  if (type == core::DType::kQ4_K) {  // every scale and minimum is 8
    set_half(&block[2], 7.5f * d);
    std::fill_n(&block[4], 8, std::byte{8});
    std::fill_n(&block[12], 4, std::byte{0x88});
  }
  if (type == core::DType::kQ6_K) std::fill_n(&block[192], 16, std::byte{4});
  return block;
}

void fill_blocks(core::DType type, std::span<std::byte> bytes, float scale, uint64_t state) {
  const std::vector<std::byte> block = empty_block(type, scale);
  const BlockShape shape = block_shape(type);
  for (size_t at = 0; at < bytes.size(); at += block.size()) {
    std::byte* const to = &bytes[at];
    std::memcpy(to, block.data(), block.size());
    for (int32_t i = shape.code_begin; i < shape.code_end; i += 8) {
      const uint64_t codes = next_random(state);
      std::memcpy(to + i, &codes, sizeof(codes));
    }
  }
}

core::DType type_of(const ExpectedTensor& tensor, core::DType type) {
  const bool whole = tensor.shape.back() % core::info(type).block_elements == 0;
  return tensor.role == TensorRole::kMatrix && whole ? type : core::DType::kBF16;
}

int64_t tensor_bytes(const ExpectedTensor& tensor, core::DType type) {
  int64_t rows = 1;  // check_config keeps the product of two widths far below 2^63
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return rows * core::row_bytes(type_of(tensor, type), tensor.shape.back());
}

Result<int64_t> total_bytes(const std::string& where, const core::ModelConfig& config,
                            core::DType type) {
  int64_t total = 0;  // at most 4096 layers of a few 2^38 elements
  RETURN_IF_ERROR(visit_expected_tensors(config, [&](const ExpectedTensor& tensor) {
    total += tensor_bytes(tensor, type);
    return Result<void>();
  }));
  const int64_t memory = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  if (total > memory) {
    return base::error(Code::kTooLarge, "{}: dummy weights need {}, this machine has {} of memory",
                       where, base::format_bytes(total), base::format_bytes(memory));
  }
  return total;
}

// Bytes that one thread fills at a time, rounded down to blocks; each piece of a tensor has a
// stream of its own.
constexpr size_t kPieceBytes = size_t{64} << 20;

// Part of a tensor to be filled.
struct Piece {
  std::span<std::byte> bytes;
  TensorRole role = TensorRole::kMatrix;
  core::DType type = core::DType::kBF16;
  float scale = 1.0f;
  uint64_t stream = 0;
};

void fill(const Piece& piece) {
  if (piece.role == TensorRole::kNorm) {
    fill_ones(piece.bytes);
  } else if (piece.type != core::DType::kBF16) {
    fill_blocks(piece.type, piece.bytes, piece.scale, piece.stream);
  } else {
    fill(piece.bytes, piece.scale, piece.stream);
  }
}

void add_pieces(const ExpectedTensor& tensor, core::DType type, uint64_t seed,
                std::span<std::byte> bytes, std::vector<Piece>* pieces) {
  const float scale = tensor.role == TensorRole::kMatrix
                          ? 1.0f / std::sqrt(static_cast<float>(tensor.shape.back()))
                          : kBiasScale;
  uint64_t stream = hash(tensor.name, seed);
  const auto block = static_cast<size_t>(core::info(type).block_bytes);
  const size_t piece_bytes = kPieceBytes / block * block;
  for (size_t begin = 0; begin < bytes.size(); begin += piece_bytes) {
    const size_t size = std::min(piece_bytes, bytes.size() - begin);
    pieces->push_back({bytes.subspan(begin, size), tensor.role, type, scale, stream});
    stream = hash(tensor.name, stream);
  }
}

void fill_all(std::span<const Piece> pieces) {
  const size_t num_threads = std::clamp<size_t>(std::thread::hardware_concurrency(), 1,
                                                std::max<size_t>(1, pieces.size()));
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) fill(pieces[i]);
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
}

}  // namespace

bool can_be_dummy(core::DType type) {
  using enum core::DType;
  return type == kBF16 || type == kQ8_0 || type == kQ4_0 || type == kQ4_1 || type == kQ4_K ||
         type == kQ6_K;
}

Result<void> make_dummy_weights(const std::string& where, uint64_t seed, ModelFiles& model,
                                core::DType type) {
  CHECK(can_be_dummy(type), "{}", core::info(type).name);
  ASSIGN_OR_RETURN(model.weight_bytes, total_bytes(where, model.config, type));
  std::vector<Piece> pieces;
  RETURN_IF_ERROR(
      visit_expected_tensors(model.config, [&](const ExpectedTensor& expected) -> Result<void> {
        const auto size = static_cast<size_t>(tensor_bytes(expected, type));
        // Not zeroed: the threads that fill it are the first to touch it.
        model.owned.emplace_back(new (std::nothrow) std::byte[size]);
        if (model.owned.back() == nullptr) {
          return base::error(Code::kTooLarge, "{}: tensor '{}': no memory for {}", where,
                             expected.name, base::format_bytes(tensor_bytes(expected, type)));
        }
        const std::span<std::byte> bytes(model.owned.back().get(), size);
        Tensor tensor;
        tensor.type = type_of(expected, type);
        add_pieces(expected, tensor.type, seed, bytes, &pieces);
        tensor.shape = expected.shape;
        tensor.bytes = bytes;
        model.tensors.emplace(expected.name, std::move(tensor));
        return {};
      }));
  fill_all(pieces);
  return {};
}

}  // namespace load
