// Where the panels of a matrix have their parts: for what packs, embeds and multiplies.
#pragma once

#include "core/dtype.h"
#include "ops/cpu/panel.h"

namespace ops::cpu {

// REQUIRES: cols is a multiple of the type's block.
PanelLayout panel_layout(core::DType type, int64_t rows, int64_t cols);

}  // namespace ops::cpu
