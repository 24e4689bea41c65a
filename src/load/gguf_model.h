// What a GGUF file's metadata and tensor names mean: architectures llama, qwen2 and qwen3.
//
// A key under the architecture's own prefix that is not known here is refused by name, because
// those keys exist to change what the model computes; keys of general.* and tokenizer.* are read
// where they matter and ignored otherwise. A vocabulary may be padded: the embedding's rows are the
// vocabulary, and ids from the end of the token list on are filled with unused tokens named
// "[PAD<id>]", so that every id has a text. A list longer than the embedding is refused.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "core/model_config.h"
#include "core/tokenizer_data.h"
#include "load/gguf.h"
#include "load/model_files.h"

namespace load {

// The whole file as a model. Tensors borrow from `bytes`; Tensor::file stays null (open_model sets
// it). `file` names it in messages.
base::Result<std::unique_ptr<ModelFiles>> read_gguf_model(const std::string& file,
                                                          std::span<const std::byte> bytes);

// Parts of the above, in the order they are called.
base::Result<core::ModelConfig> read_gguf_config(const GgufFile& gguf);
// Nothing when the file has no tokenizer. Errors: kUnsupported for another kind than byte-level BPE
// and SentencePiece.
base::Result<std::optional<core::TokenizerData>> read_gguf_tokenizer(const GgufFile& gguf,
                                                                     int32_t vocab_size);

}  // namespace load
