// What a Hugging Face config.json means: model types llama, mistral, qwen2 and qwen3.
//
// The rule for keys that are not known here: such a key is refused when its name speaks of the
// mathematics (attention, rope, norm, layer, scale ...) and its value does something (not null,
// false, zero, empty, or one for a scale). Anything else is training, generation or bookkeeping and
// is ignored with a warning in the log. Keys known to be harmless whatever their name are listed in
// the source, keys that start with an underscore are bookkeeping, and dropout is off when a model
// answers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/model_config.h"

namespace load {

class JsonObject;

// `file` names the text in messages. The name of the model is left to the caller.
base::Result<core::ModelConfig> read_hf_config(const std::string& file, std::string_view json);

// The RoPE part: rope_scaling and rope_parameters, in old and new spellings. May raise
// config.context_max (yarn).
base::Result<void> read_hf_rope(const JsonObject& root, core::ModelConfig& config);

// Token ids under `key`: one, a list, or nothing; negative ones mean none.
base::Result<std::vector<core::TokenId>> read_hf_token_ids(const JsonObject& root,
                                                           std::string_view key);

}  // namespace load
