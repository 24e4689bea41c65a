#include "core/kv_options.h"

#include <array>

namespace core {
namespace {

template <size_t kCount>
std::string_view pick(const std::array<std::string_view, kCount>& names, auto value) {
  return names[static_cast<size_t>(value)];
}

}  // namespace

std::string_view name(PageStatsKind kind) {
  return pick<4>({"cuboid-mean", "min-max", "mean-std", "mean"}, kind);
}
std::string_view name(LoadMethod method) {
  return pick<7>({"auto", "memcpy", "batched", "uva", "bulk", "uva-page", "staged"}, method);
}
std::string_view name(SaveMethod method) {
  return pick<5>({"auto", "memcpy", "gpu-direct", "staged", "extents"}, method);
}
std::string_view name(SaveGranularity granularity) {
  return pick<2>({"pages", "step"}, granularity);
}
std::string_view name(Admission admission) {
  return pick<2>({"none", "working-set"}, admission);
}
std::string_view name(Prefill prefill) {
  return pick<2>({"chunked", "layer"}, prefill);
}

}  // namespace core
