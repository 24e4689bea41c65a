// Attention as its definition reads, in double: what every other version is compared with.
#include "ops/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/kv_seal.h"

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

// A key of one head: a token of a page.
struct Key {
  core::PageShape shape;
  const std::byte* page;
  int32_t token;
};

// Where the tables by position say that page `page` of a head lies.
std::byte* page_of(const KvLayer& kv, const AttentionSegment& segment, int32_t page, int32_t head) {
  const bool streaming = kv.heads[static_cast<size_t>(head)].kind.is_streaming();
  const int32_t* frames =
      streaming ? segment.stream_frames : segment.frames + head * segment.frames_head_stride;
  return kv.frame(frames[page], head);
}

// Quantised KV: where the rows of page `page`, one of the segment's own, are written.
std::byte* open_page_of(const KvLayer& kv, const AttentionSegment& segment, int32_t page,
                        int32_t head) {
  const int32_t first = segment.position_begin / kv.page.page_tokens;
  return kv.open_frame(segment.open_frames[page - first], head);
}

// All keys that row i of a segment sees, in their order.
std::vector<Key> keys_seen(const KvLayer& kv, const AttentionSegment& segment, int32_t i,
                           int32_t head) {
  const int32_t page_tokens = kv.page.page_tokens;
  const int32_t position = segment.position_begin + i;
  const core::HeadKind& kind = kv.heads[static_cast<size_t>(head)].kind;
  // The row's own page is read as it was written.
  const auto key_at = [&](int32_t page, int32_t token, bool own) -> Key {
    if (own && kv.page.is_quantised()) {
      return {kv.written_page(), open_page_of(kv, segment, position / page_tokens, head), token};
    }
    return {kv.page, page_of(kv, segment, page, head), token};
  };
  std::vector<Key> keys;
  if (!kind.is_streaming() && segment.num_selected != nullptr) {
    const int32_t last = segment.num_selected[head] - 1;
    for (int32_t rank = 0; rank <= last; ++rank) {
      const int32_t tokens = rank < last ? page_tokens : position % page_tokens + 1;
      for (int32_t token = 0; token < tokens; ++token) {
        keys.push_back(key_at(rank, token, rank == last));
      }
    }
    return keys;
  }
  for (int32_t key = 0; key <= position; ++key) {
    if (kind.is_streaming() && key >= kind.sink && position - key >= kind.local) continue;
    const int32_t page = key / page_tokens;
    keys.push_back(key_at(page, key % page_tokens, page == position / page_tokens));
  }
  return keys;
}

void attend(const AttentionArgs& args, const AttentionSegment& segment, int32_t i, int32_t head) {
  const int32_t head_dim = args.kv.page.head_dim;
  const int32_t kv_head = head / (args.num_q_heads / args.kv.num_kv_heads());
  const int64_t row = segment.row_begin + i;
  const float* q = args.q + row * args.q_stride + int64_t{head} * head_dim;

  const std::vector<Key> keys = keys_seen(args.kv, segment, i, kv_head);
  std::vector<float> kv_row(static_cast<size_t>(head_dim));
  std::vector<double> weights;
  double max = -INFINITY;
  for (const Key& key : keys) {
    read_kv_row(key.shape, key.page, false, key.token, kv_row.data());
    double score = 0.0;
    for (int32_t c = 0; c < head_dim; ++c) score += double{q[c]} * kv_row[static_cast<size_t>(c)];
    weights.push_back(score * args.softmax_scale);
    max = std::fmax(max, weights.back());
  }
  double sum = 0.0;
  for (double& weight : weights) sum += weight = std::exp(weight - max);

  std::vector<double> out(static_cast<size_t>(head_dim), 0.0);
  for (size_t n = 0; n < keys.size(); ++n) {
    read_kv_row(keys[n].shape, keys[n].page, true, keys[n].token, kv_row.data());
    for (size_t c = 0; c < out.size(); ++c) out[c] += weights[n] * kv_row[c];
  }
  for (int32_t c = 0; c < head_dim; ++c) {
    args.out[row * args.out_stride + int64_t{head} * head_dim + c] =
        static_cast<float>(out[static_cast<size_t>(c)] / sum);
  }
}

}  // namespace

void kv_write(device::Stream&, const KvWriteArgs& args) {
  const core::PageShape shape = args.kv.written_page();
  const int64_t element_bytes = core::row_bytes(shape.type, 1);
  const int64_t row_bytes = core::row_bytes(shape.type, shape.head_dim);
  for (const AttentionSegment& segment : args.segments) {
    for (int32_t i = 0; i < segment.row_end - segment.row_begin; ++i) {
      const int64_t row = segment.row_begin + i;
      const int32_t position = segment.position_begin + i;
      for (int32_t head = 0; head < args.kv.num_kv_heads(); ++head) {
        const int32_t index = position / shape.page_tokens;
        std::byte* page = args.kv.page.is_quantised() ? open_page_of(args.kv, segment, index, head)
                                                      : page_of(args.kv, segment, index, head);
        std::byte* k = page + position % shape.page_tokens * row_bytes;
        std::byte* v = k + shape.page_tokens * row_bytes;
        for (int32_t c = 0; c < shape.head_dim; ++c) {
          const int64_t from = int64_t{head} * shape.head_dim + c;
          store_element(shape.type, args.k[row * args.k_stride + from], k + c * element_bytes);
          store_element(shape.type, args.v[row * args.v_stride + from], v + c * element_bytes);
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
