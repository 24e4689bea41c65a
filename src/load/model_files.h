// A model on disk, checked: its configuration, its weights by name, and its tokenizer as data.
//
// One reader a format (gguf.h, huggingface.h), one result. Everything is hostile: every size,
// offset, count and shape is checked before a byte is used, allocation is bounded by the file's own
// size, and an error is one line that names file, tensor or key, expected and found. Weights stay
// in the mapped files; nothing is copied here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "core/dtype.h"
#include "core/model_config.h"
#include "core/tokenizer_data.h"

namespace load {

// Canonical names, the same for every format (N = layer):
//   token_embd  output_norm  output (absent when tied)
//   blk.N.attn_norm  blk.N.attn_{q,k}_norm
//   blk.N.attn_{q,k,v,output}  blk.N.attn_{q,k,v,output}_bias
//   blk.N.ffn_norm  blk.N.ffn_{gate,up,down}  blk.N.ffn_{gate,up,down}_bias
//   blk.N.attn_post_norm  blk.N.ffn_post_norm
struct Tensor {
  core::DType type = core::DType::kF32;
  std::vector<int64_t> shape;              // row-major: {rows, cols} or {width}
  std::span<const std::byte> bytes;        // in one of ModelFiles::files, or in `owned`
  int32_t rope_interleaved_head_dim = 0;   // ops::RowOrder of q and k in llama GGUF files
  bool stored_less_one = false;            // gemma's norms in safetensors: the weight is 1 + stored
  const base::MappedFile* file = nullptr;  // whose pages may be dropped once packed; null = none
};

struct ModelFiles {
  core::ModelConfig config;
  // canonical name -> tensor; exactly the ones `config` calls for, shapes checked
  std::map<std::string, Tensor> tensors;
  std::vector<std::unique_ptr<base::MappedFile>> files;
  std::vector<std::unique_ptr<std::byte[]>>
      owned;  // bytes of generated weights (--load-format dummy)

  bool has_tokenizer = false;
  // GGUF: complete. Hugging Face: only what is outside tokenizer.json (bos, eos, template)
  core::TokenizerData tokenizer;
  std::string tokenizer_json;  // Hugging Face: the file's text; "" for GGUF
  std::string format;          // "GGUF v3", "safetensors", "dummy": for people
  int64_t weight_bytes = 0;
};

// What open_model does with weights. kDummy makes seeded random weights of the right shapes from
// config.json alone.
enum class LoadFormat : uint8_t { kAuto, kDummy };

// `dummy_type`: one that can_be_dummy() (dummy.h). `path`: a .gguf file, a folder with config.json,
// or (kDummy) a config.json. Errors: kNotFound, kIo, kInvalidArgument (damaged), kUnsupported (an
// architecture, type or option that changes the mathematics and is not implemented, by name).
base::Result<std::unique_ptr<ModelFiles>> open_model(const std::string& path, LoadFormat format,
                                                     uint64_t dummy_seed,
                                                     core::DType dummy_type = core::DType::kBF16);

}  // namespace load
