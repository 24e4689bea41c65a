// --load-format dummy: seeded random BF16 weights of the right shapes, for measuring speed and
// memory without a download.
//
// Matrices are normal with variance 1 / fan_in, so that what each layer adds has the size of its
// input and activations stay finite through any depth; norms are ones; biases are small. Never
// zeros: some hardware and kernels are faster on zeros. The same (config, seed) gives the same
// bytes everywhere. About 1.5 GB/s a core, on all of them; the memory is the model's.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "load/model_files.h"

namespace load {

// Makes what model.config calls for, in model.owned. REQUIRES: the configuration is checked.
// `where` names the model in messages. Errors: kTooLarge when the weights exceed the machine's
// memory.
base::Result<void> make_dummy_weights(const std::string& where, uint64_t seed, ModelFiles& model);

}  // namespace load
