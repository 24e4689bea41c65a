// A model as Hugging Face publishes it: a folder with config.json, safetensors (one file, or shards
// with an index), and the tokenizer's files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "load/model_files.h"
#include "load/safetensors.h"

namespace load {

// Errors as open_model.
base::Result<std::unique_ptr<ModelFiles>> open_huggingface(const std::string& folder);

// --load-format dummy: `path` is a folder with config.json or the config.json itself; weights are
// made up (dummy.h).
base::Result<std::unique_ptr<ModelFiles>> open_dummy(const std::string& path, uint64_t seed,
                                                     core::DType type);

// Fills model.tensors from parsed containers for model.config; tensors borrow from their bytes,
// Tensor::file stays null. Errors name the first container, or the one a tensor is in.
base::Result<void> read_hf_tensors(const std::vector<SafetensorsFile>& files, ModelFiles& model);

// The files beside the weights, all of them optional.
struct HfTexts {
  std::string tokenizer_json;
  std::string tokenizer_config;
  std::string generation_config;
  std::string chat_template;  // chat_template.jinja
};
// Fills the tokenizer of `model`, and the bos and eos of its configuration. `folder` names the
// texts in messages. Which tokens end a sequence: those of generation_config.json, else those of
// config.json; and the tokenizer's own eos.
base::Result<void> read_hf_tokenizer(const std::string& folder, HfTexts texts, ModelFiles& model);

}  // namespace load
