// What a user can set about the engine, and the sizes that follow from it.
//
// resolve() is pure and runs once at start, before any large memory is taken: every size of the
// house is decided there, checked against the machine and printed. Nothing grows afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/dtype.h"
#include "core/ids.h"
#include "core/model_config.h"

namespace engine {

struct EngineOptions {
  // Behaviour.
  std::optional<int32_t> max_model_len;      // tokens; default: the model's context, or what the KV
                                             // memory holds if that is less
  core::DType kv_type = core::DType::kBF16;  // kBF16, kF16 or kF32
  bool prefix_cache = true;
  bool deterministic =
      false;  // reuse only cached blocks that prompts made, so that a hit changes no bit
  std::vector<core::TokenId>
      eog_tokens;  // the tokenizer's end-of-generation ids; the model's eos are added
  // Performance.
  int32_t max_num_seqs = 256;             // [1, 4096] sequences in a step
  int32_t max_num_batched_tokens = 1024;  // [max_num_seqs, 65536] rows in a step
  int32_t inbox_capacity = 1024;  // [1, 65536] requests that may wait; beyond that submit refuses
  int32_t page_tokens = 32;       // P: 16, 32 or 64
  // KV pages, workspace and staging together, beside the weights. Default: half of what the machine
  // has left for pages, and no more than max_num_seqs sequences of full length can use.
  std::optional<int64_t> device_memory_bytes;
};

// What the caller measured: resolve() itself looks at nothing.
struct MemorySizes {
  int64_t available_bytes = 0;  // the smaller of the machine's memory and the control group's limit
  int64_t weights_bytes = 0;
  int64_t workspace_bytes = 0;  // activations and scratch of a step of max_num_batched_tokens rows
  int64_t staging_bytes = 0;    // copies on the way between tiers or threads
};

struct ResolvedSizes {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t page_tokens = 0;  // P
  core::DType kv_type = core::DType::kBF16;
  int32_t num_blocks = 0;   // N
  int64_t block_bytes = 0;  // L * Hk * 2 * P * D * sizeof(KV)
  int64_t kv_bytes = 0;     // num_blocks * block_bytes
  int32_t context_max = 0;  // tokens of one sequence, prompt and output; num_blocks hold it
  int64_t weights_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t staging_bytes = 0;
};

// Errors: kInvalidArgument (an option outside its range), kTooLarge (it does not fit); the message
// says which option to change and to what.
base::Result<ResolvedSizes> resolve(const EngineOptions& options, const core::ModelConfig& model,
                                    const MemorySizes& memory);

// The sizes as a table for people, one line each.
std::string format_table(const ResolvedSizes& sizes);

}  // namespace engine
