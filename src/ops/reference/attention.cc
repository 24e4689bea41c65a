// Attention as its definition reads, in double: what every other version is compared with.
#include "ops/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/reference/dequantize.h"

namespace ops::reference {
namespace {

// The nearest bfloat16, ties to even; NaN stays NaN.
uint16_t float_to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The nearest half, ties to even; infinite from 65520 on.
uint16_t float_to_half(float x) {
  const auto sign = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16 & 0x8000);
  if (std::isnan(x))
    return static_cast<uint16_t>(sign | 0x7c00 | 0x200 |
                                 (std::bit_cast<uint32_t>(x) >> 13 & 0x3ff));
  const double magnitude = std::fabs(double{x});
  if (magnitude >= 65520.0) return sign | 0x7c00;
  // In units of the last place: 2^-24 for subnormals, else 2^(exponent - 10). A carry moves into
  // the exponent by itself.
  const int exponent = std::max(magnitude == 0.0 ? -14 : std::ilogb(magnitude), -14);
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  const uint32_t biased = static_cast<uint32_t>(exponent + 14) << 10;
  return static_cast<uint16_t>(sign | (biased + units));
}

void store_element(core::DType type, float x, std::byte* out) {
  switch (type) {
    case core::DType::kF32:
      std::memcpy(out, &x, sizeof(x));
      return;
    case core::DType::kF16: {
      const uint16_t bits = float_to_half(x);
      std::memcpy(out, &bits, sizeof(bits));
      return;
    }
    case core::DType::kBF16: {
      const uint16_t bits = float_to_bfloat16(x);
      std::memcpy(out, &bits, sizeof(bits));
      return;
    }
    default:
      CHECK(false, "{} is no KV type", core::info(type).name);
  }
}

float load_element(core::DType type, const std::byte* in) {
  if (type == core::DType::kF32) {
    float x;
    std::memcpy(&x, in, sizeof(x));
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, in, sizeof(bits));
  return type == core::DType::kF16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

// The K row, or with `values` the V row, of a position.
std::byte* kv_row(const KvLayer& kv, const AttentionSegment& segment, int32_t position,
                  int32_t head, bool values) {
  const core::PageShape& page = kv.page;
  const int32_t frame =
      segment.frames[head * segment.frames_head_stride + position / page.page_tokens];
  const int32_t row = position % page.page_tokens + (values ? page.page_tokens : 0);
  return kv.frame(frame, head) + row * core::row_bytes(page.type, page.head_dim);
}

void attend(const AttentionArgs& args, const AttentionSegment& segment, int32_t i, int32_t head) {
  const KvLayer& kv = args.kv;
  const int32_t head_dim = kv.page.head_dim;
  const int32_t kv_head = head / (args.num_q_heads / kv.num_kv_heads());
  const int32_t keys = segment.position_begin + i + 1;
  const int64_t row = segment.row_begin + i;
  const int64_t element_bytes = core::row_bytes(kv.page.type, 1);
  const float* q = args.q + row * args.q_stride + int64_t{head} * head_dim;

  std::vector<double> weights(static_cast<size_t>(keys));
  double max = -INFINITY;
  for (int32_t key = 0; key < keys; ++key) {
    const std::byte* k = kv_row(kv, segment, key, kv_head, false);
    double score = 0.0;
    for (int32_t c = 0; c < head_dim; ++c)
      score += double{q[c]} * load_element(kv.page.type, k + c * element_bytes);
    weights[static_cast<size_t>(key)] = score * args.softmax_scale;
    max = std::fmax(max, weights[static_cast<size_t>(key)]);
  }
  double sum = 0.0;
  for (double& weight : weights) sum += weight = std::exp(weight - max);

  std::vector<double> out(static_cast<size_t>(head_dim), 0.0);
  for (int32_t key = 0; key < keys; ++key) {
    const std::byte* v = kv_row(kv, segment, key, kv_head, true);
    for (int32_t c = 0; c < head_dim; ++c) {
      out[static_cast<size_t>(c)] +=
          weights[static_cast<size_t>(key)] * load_element(kv.page.type, v + c * element_bytes);
    }
  }
  for (int32_t c = 0; c < head_dim; ++c) {
    args.out[row * args.out_stride + int64_t{head} * head_dim + c] =
        static_cast<float>(out[static_cast<size_t>(c)] / sum);
  }
}

}  // namespace

void kv_write(device::Stream&, const KvWriteArgs& args) {
  const KvLayer& kv = args.kv;
  const int64_t element_bytes = core::row_bytes(kv.page.type, 1);
  for (const AttentionSegment& segment : args.segments) {
    for (int32_t i = 0; i < segment.row_end - segment.row_begin; ++i) {
      const int64_t row = segment.row_begin + i;
      for (int32_t head = 0; head < kv.num_kv_heads(); ++head) {
        std::byte* k = kv_row(kv, segment, segment.position_begin + i, head, false);
        std::byte* v = kv_row(kv, segment, segment.position_begin + i, head, true);
        for (int32_t c = 0; c < kv.page.head_dim; ++c) {
          const int64_t from = int64_t{head} * kv.page.head_dim + c;
          store_element(kv.page.type, args.k[row * args.k_stride + from], k + c * element_bytes);
          store_element(kv.page.type, args.v[row * args.v_stride + from], v + c * element_bytes);
        }
      }
    }
  }
}

void attention(device::Stream& stream, const AttentionArgs& args) {
  for (const AttentionSegment& segment : args.segments) {
    const int64_t rows = segment.row_end - segment.row_begin;
    stream.pool().parallel_for(rows * args.num_q_heads, [&](int64_t item, int) {
      attend(args, segment, static_cast<int32_t>(item / args.num_q_heads),
             static_cast<int32_t>(item % args.num_q_heads));
    });
  }
}

int64_t attention_workspace_bytes(const AttentionShape&) {
  return 0;
}

}  // namespace ops::reference
