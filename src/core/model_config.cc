#include "core/model_config.h"

namespace core {

const char* arch_name(Arch arch) {
  switch (arch) {
    case Arch::kLlama:
      return "llama";
    case Arch::kQwen2:
      return "qwen2";
    case Arch::kQwen3:
      return "qwen3";
    case Arch::kGemma3:
      return "gemma3";
  }
  return "unknown";
}

HeadKinds window_kinds(const std::vector<bool>& slides, int32_t num_kv_heads, int32_t window) {
  HeadKinds all{static_cast<int32_t>(slides.size()), num_kv_heads, {}};
  for (bool slide : slides) {
    all.kinds.insert(all.kinds.end(), static_cast<size_t>(num_kv_heads),
                     slide ? HeadKind{0, window} : HeadKind{});
  }
  return all;
}

}  // namespace core
