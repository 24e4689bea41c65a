#include "core/dtype.h"

#include <array>

#include "base/check.h"

namespace core {
namespace {

constexpr std::array<DTypeInfo, kNumKvDTypes> kInfo{{{"F32", 1, 4},
                                                     {"F16", 1, 2},
                                                     {"BF16", 1, 2},
                                                     {"Q8_0", 32, 34},
                                                     {"Q4_0", 32, 18},
                                                     {"Q4_1", 32, 20},
                                                     {"Q5_0", 32, 22},
                                                     {"Q5_1", 32, 24},
                                                     {"Q4_K", 256, 144},
                                                     {"Q5_K", 256, 176},
                                                     {"Q6_K", 256, 210},
                                                     {"I8", 1, 1},
                                                     {"F8_E4M3", 1, 1}}};

}  // namespace

const DTypeInfo& info(DType type) {
  return kInfo[static_cast<size_t>(type)];
}

std::optional<DType> find_dtype(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (kInfo[static_cast<size_t>(i)].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

int64_t row_bytes(DType type, int64_t elements) {
  const DTypeInfo& t = info(type);
  CHECK(elements % t.block_elements == 0, "{} elements of {}", elements, t.name);
  return elements / t.block_elements * t.block_bytes;
}

}  // namespace core
