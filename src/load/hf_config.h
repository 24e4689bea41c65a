// What a Hugging Face config.json means: model types llama, mistral, qwen2, qwen3 and gemma3 (its
// text model alone, also as text_config of a model with vision).
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

// The same for gemma3, whose sliding-window layers have a RoPE of their own.
base::Result<void> read_hf_gemma3_rope(const JsonObject& root, core::ModelConfig& config);

// gemma3: sizes with their defaults, what the architecture fixes, windows and RoPE.
base::Result<void> read_hf_gemma3(const JsonObject& root, core::ModelConfig& config);

// A size under `key`; `absent` < 0: it must be there.
base::Result<int32_t> read_hf_size(const JsonObject& root, std::string_view key, int32_t absent);

// Token ids under `key`: one, a list, or nothing; negative ones mean none.
base::Result<std::vector<core::TokenId>> read_hf_token_ids(const JsonObject& root,
                                                           std::string_view key);

}  // namespace load
