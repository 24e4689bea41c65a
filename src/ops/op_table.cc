#include "ops/op_table.h"

#include "base/check.h"

namespace ops {
namespace {

constexpr OpTable kReference{.isa = device::Isa::kReference,
                             .pack = reference::pack,
                             .linear = reference::linear,
                             .linear_workspace_bytes = reference::linear_workspace_bytes,
                             .embed = reference::embed,
                             .kv_write = reference::kv_write,
                             .kv_seal = reference::kv_seal,
                             .attention = reference::attention,
                             .attention_workspace_bytes = reference::attention_workspace_bytes,
                             .rms_norm = reference::rms_norm,
                             .rope = reference::rope,
                             .swiglu = reference::swiglu,
                             .geglu = reference::geglu,
                             .page_stats = reference::page_stats,
                             .page_score = reference::page_score};

constexpr OpTable kAvx2{.isa = device::Isa::kAvx2,
                        .pack = cpu::pack,
                        .linear = avx2::linear,
                        .linear_workspace_bytes = cpu::linear_workspace_bytes,
                        .embed = cpu::embed,
                        .kv_write = avx2::kv_write,
                        .kv_seal = avx2::kv_seal,
                        .attention = avx2::attention,
                        .attention_workspace_bytes = avx2::attention_workspace_bytes,
                        .rms_norm = avx2::rms_norm,
                        .rope = avx2::rope,
                        .swiglu = avx2::swiglu,
                        .geglu = avx2::geglu,
                        .page_stats = avx2::page_stats,
                        .page_score = avx2::page_score};

constexpr OpTable kAvx512{.isa = device::Isa::kAvx512,
                          .pack = cpu::pack,
                          .linear = avx512::linear,
                          .linear_workspace_bytes = cpu::linear_workspace_bytes,
                          .embed = cpu::embed,
                          .kv_write = avx512::kv_write,
                          .kv_seal = avx512::kv_seal,
                          .attention = avx512::attention,
                          .attention_workspace_bytes = avx512::attention_workspace_bytes,
                          .rms_norm = avx512::rms_norm,
                          .rope = avx512::rope,
                          .swiglu = avx512::swiglu,
                          .geglu = avx512::geglu,
                          .page_stats = avx512::page_stats,
                          .page_score = avx512::page_score};

}  // namespace

const OpTable& op_table(device::Isa isa) {
  CHECK(isa <= device::detect_isa(), "no {} on this processor", device::isa_name(isa));
  switch (isa) {
    case device::Isa::kReference:
      return kReference;
    case device::Isa::kAvx2:
      return kAvx2;
    case device::Isa::kAvx512:
      return kAvx512;
  }
  CHECK(false, "isa {}", static_cast<int>(isa));
  return kReference;
}

}  // namespace ops
