// The tensors that a configuration calls for, and the check that a file has exactly those.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/model_config.h"
#include "load/model_files.h"

namespace load {

enum class TensorRole : uint8_t { kMatrix, kNorm, kBias };

struct ExpectedTensor {
  std::string name;            // canonical (model_files.h)
  std::vector<int64_t> shape;  // row-major
  TensorRole role = TensorRole::kMatrix;
};

// Calls `visit` for each tensor of `config` in the order of the forward pass, until one call fails;
// returns that failure. REQUIRES: check_config(config) passed. Lazy, so that a claim of a million
// layers costs one missing tensor.
base::Result<void> visit_expected_tensors(
    const core::ModelConfig& config,
    const std::function<base::Result<void>(const ExpectedTensor&)>& visit);

// How one format names and finds tensors.
struct TensorSource {
  // The file's name of a canonical one: "blk.0.attn_q" -> "model.layers.0.self_attn.q_proj.weight".
  std::function<std::string(const std::string&)> file_name;
  // The tensor of that file name; kNotFound when there is none, other codes when it cannot be used.
  std::function<base::Result<Tensor>(const std::string&)> find;
};

// Fills `tensors` with what `config` calls for. Errors: kInvalidArgument, one line naming `where`,
// the tensor, expected and found. `used` gets the file names taken, so that the caller can refuse
// what is left over.
base::Result<void> collect_tensors(const std::string& where, const core::ModelConfig& config,
                                   const TensorSource& source,
                                   std::map<std::string, Tensor>& tensors,
                                   std::vector<std::string>& used);

// "(576, 49152)".
std::string format_shape(const std::vector<int64_t>& shape);

// A canonical name in its parts: "blk.12.attn_q_bias" -> {12, "attn_q", kBias}; "token_embd" ->
// {-1, "token_embd", kMatrix}.
struct NameParts {
  int32_t layer = -1;  // -1: of no layer
  std::string part;
  bool bias = false;
};
NameParts split_name(const std::string& canonical);

}  // namespace load
