// --load-format dummy: seeded random weights of the right shapes, BF16 or of a GGUF type, for
// measuring speed and memory without a download.
//
// Matrices have variance 1 / fan_in and mean about 0 (BF16: normal; quantised: even over the
// codes, one scale), so that what each layer adds has the size of its input and activations stay
// finite through any depth; norms are ones; biases are small. Never
// zeros: some hardware and kernels are faster on zeros. The same (config, seed) gives the same
// bytes everywhere. About 1.5 GB/s a core, on all of them; the memory is the model's.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "load/model_files.h"

namespace load {

// The types that matrices can have beside BF16: Q8_0, Q4_0, Q4_1, Q4_K, Q6_K.
bool can_be_dummy(core::DType type);

// Makes what model.config calls for, in model.owned: matrices of `type` where their rows are whole
// blocks of it, everything else BF16. REQUIRES: the configuration is checked, can_be_dummy(type).
// `where` names the model in messages. Errors: kTooLarge when the weights exceed the machine's
// memory.
base::Result<void> make_dummy_weights(const std::string& where, uint64_t seed, ModelFiles& model,
                                      core::DType type = core::DType::kBF16);

}  // namespace load
