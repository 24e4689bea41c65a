// Quantised pages as their definition reads, one element at a time.
#include "ops/kv_seal.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops::reference {
namespace {

constexpr int kCodesE4m3 = 0x7f;  // codes 0 to 0x7e are finite; 0x7f is NaN

// The value of a code without sign: exponent bias 7, 3 bits of mantissa, subnormals below 2^-6.
float e4m3_to_float(int code) {
  const int exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                       : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

// The nearest code of |x| <= 448, ties to the even one.
int float_to_e4m3(float x) {
  int best = 0;
  for (int code = 1; code < kCodesE4m3; ++code) {
    const double distance = std::fabs(double{x} - e4m3_to_float(code));
    const double least = std::fabs(double{x} - e4m3_to_float(best));
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best;
}

float load_bfloat16(const std::byte* in) {
  uint16_t bits;
  std::memcpy(&bits, in, sizeof(bits));
  return bfloat16_to_float(bits);
}

std::byte encode(core::DType type, float x, float scale) {
  if (scale == 0.0f || std::isnan(scale)) return std::byte{0};
  const float quotient = x / scale;
  if (type == core::DType::kI8) {
    const float code = std::clamp(std::nearbyint(quotient), -127.0f, 127.0f);
    return static_cast<std::byte>(static_cast<int8_t>(code));
  }
  const int code = float_to_e4m3(std::min(std::fabs(quotient), 448.0f));
  return static_cast<std::byte>(code | (std::signbit(quotient) ? 0x80 : 0));
}

float decode(core::DType type, std::byte code) {
  if (type == core::DType::kI8) return static_cast<float>(static_cast<int8_t>(code));
  const float magnitude = e4m3_to_float(static_cast<int>(code) & 0x7f);
  return (static_cast<int>(code) & 0x80) != 0 ? -magnitude : magnitude;
}

// Quantises `count` elements, `stride` apart, with one scale, which it returns.
float encode_all(core::DType type, const std::byte* open, int64_t count, int64_t stride,
                 std::byte* codes) {
  float max = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    const float x = load_bfloat16(open + i * stride * 2);
    finite = finite && std::isfinite(x);
    max = std::fmax(max, std::fabs(x));
  }
  const float scale = finite ? max / (type == core::DType::kI8 ? 127.0f : 448.0f) : NAN;
  for (int64_t i = 0; i < count; ++i) {
    codes[i * stride] = encode(type, load_bfloat16(open + i * stride * 2), scale);
  }
  return scale;
}

}  // namespace

void kv_seal(device::Stream&, const KvSealArgs& args) {
  const core::PageShape& shape = args.page;
  CHECK(shape.is_quantised(), "{} pages are not sealed", core::info(shape.type).name);
  const int64_t elements = int64_t{shape.page_tokens} * shape.head_dim;
  for (const KvSealItem& item : args.items) {
    std::byte* scales = item.page + 2 * elements;
    std::memset(scales, 0, static_cast<size_t>(shape.page_bytes() - 2 * elements));
    for (int32_t c = 0; c <= shape.head_dim; ++c) {
      const float scale =
          c < shape.head_dim
              ? encode_all(shape.type, item.open + 2 * c, shape.page_tokens, shape.head_dim,
                           item.page + c)
              : encode_all(shape.type, item.open + 2 * elements, elements, 1, item.page + elements);
      std::memcpy(scales + c * sizeof(scale), &scale, sizeof(scale));
    }
  }
}

void read_kv_row(const core::PageShape& shape, const std::byte* page, bool v, int32_t token,
                 float* out) {
  const int32_t row = token + (v ? shape.page_tokens : 0);
  const std::byte* elements = page + row * core::row_bytes(shape.type, shape.head_dim);
  if (!shape.is_quantised()) return dequantize_row(shape.type, elements, shape.head_dim, out);
  const std::byte* scales = page + 2 * int64_t{shape.page_tokens} * shape.head_dim;
  for (int32_t c = 0; c < shape.head_dim; ++c) {
    float scale;
    std::memcpy(&scale, scales + (v ? shape.head_dim : c) * sizeof(scale), sizeof(scale));
    out[c] = bfloat16_to_float(float_to_bfloat16(decode(shape.type, elements[c]) * scale));
  }
}

}  // namespace ops::reference
