#include <utility>

#include "model/decoder.h"

namespace model {

base::Result<std::unique_ptr<Model>> create_model(device::Stream& stream, const ops::OpTable& ops,
                                                  const load::ModelFiles& files,
                                                  const ModelLimits& limits,
                                                  const LoadProgress& progress) {
  DecoderParts parts{.stream = &stream, .ops = &ops, .config = files.config, .limits = limits};
  const int64_t bytes =
      model_workspace_bytes(files.config, limits, ops, stream.pool().num_threads());
  ASSIGN_OR_RETURN(parts.workspace, device::Buffer::allocate(bytes, "workspace"));
  ASSIGN_OR_RETURN(parts.weights, pack_weights(stream, ops, files, progress));
  switch (files.config.arch) {
    case core::Arch::kLlama:
      return make_llama(std::move(parts));
    case core::Arch::kQwen2:
      return make_qwen2(std::move(parts));
    case core::Arch::kQwen3:
      return make_qwen3(std::move(parts));
    case core::Arch::kGemma3:
      return make_gemma3(std::move(parts));
  }
  return base::error(base::Code::kUnsupported, "architecture {}: no implementation",
                     core::arch_name(files.config.arch));
}

}  // namespace model
