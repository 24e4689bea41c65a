// What equal KV pages must agree in beside their tokens, as text: blocks are found by it in the
// prefix cache and on disk.
//
// KV type, page size and heads are added below (engine/serving_engine.h, exec/disk_tier.h).
#pragma once

#include <string>

#include "apps/house.h"

namespace apps {

// For caches of this process, in which all of it stands still. REQUIRES: the device and its weights
// are chosen.
std::string fingerprint(const House& house);

// For pages on disk, which outlive the process: the model itself (every weight is read), this
// program, what computes, and on a GPU whether it is `deterministic`. Without it the bits of a
// GPU's pages depend on what shared their steps, and a server that promises that no bit does must
// not find them; a row of the CPU has the same bits in any company (ops/linear.h), so its modes
// share.
std::string lasting_fingerprint(const House& house, bool deterministic);

}  // namespace apps
