// What a user can set about the engine, and the sizes that follow from it.
//
// resolve() is pure and runs once at start, before any large memory is taken: every size of the
// house is decided there, checked against the machine and printed. Nothing grows afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/dtype.h"
#include "core/ids.h"
#include "core/kv_events.h"
#include "core/kv_options.h"
#include "core/kv_shape.h"
#include "core/model_config.h"

namespace engine {

struct EngineOptions {
  core::SparseOptions sparse;
  core::TierOptions tiers;
  // Hears what happens to cached blocks. Borrowed: outlives the engine. Null: nobody listens.
  core::KvEventSink* kv_events = nullptr;
  core::HeadKinds heads;  // of the heads file and of sliding-window layers; empty: all retrieval
  // Behaviour.
  std::optional<int32_t> max_model_len;      // tokens; default: the model's context, or what the KV
                                             // memory holds if that is less
  core::DType kv_type = core::DType::kBF16;  // kBF16, kF16, kF32, kI8 or kF8E4M3
  bool prefix_cache = true;
  bool deterministic =
      false;  // reuse only cached blocks that prompts made, so that a hit changes no bit
  double residency_rate = 0;  // share of KV blocks of which EngineSnapshot::residency tells
  std::vector<core::TokenId>
      eog_tokens;  // the tokenizer's end-of-generation ids; the model's eos are added
  // Performance.
  bool async_scheduling = true;           // plan and publish beside the running step, on a GPU
  int32_t max_num_seqs = 256;             // [1, 4096] sequences in a step
  int32_t max_num_batched_tokens = 1024;  // [max_num_seqs, 65536] rows in a step
  int32_t inbox_capacity = 1024;  // [1, 65536] requests that may wait; beyond that submit refuses
  int64_t inbox_tokens = 0;       // >= 0, of the prompts that may wait together; 0: no bound
  int32_t page_tokens = 32;       // P: 16, 32 or 64
  // All of the device tier, beside the weights. Default: half of what the machine has left (with a
  // host tier half of what homes leave; on a GPU all of it), and no more than max_num_seqs
  // sequences of full length can use.
  std::optional<int64_t> device_memory_bytes;
};

// What the caller measured: resolve() itself looks at nothing.
struct MemorySizes {
  int64_t available_bytes = 0;  // the smaller of the machine's memory and the control group's limit
  int64_t weights_bytes = 0;
  int64_t workspace_bytes = 0;  // activations and scratch of a step of max_num_batched_tokens rows
  int64_t staging_bytes = 0;    // copies on the way between tiers or threads
  int32_t num_threads = 1;      // that compute
  // On a GPU: what homes may take of the host's memory, which is another one. Nothing: one memory
  // holds both tiers.
  std::optional<int64_t> host_available_bytes;
  // On a GPU: left free for what the CUDA runtime takes itself (kernels, libraries, graphs).
  int64_t runtime_bytes = 0;
  // The same for steps of so many rows at most, for advice. Nothing: no number of rows is advised.
  std::function<MemorySizes(int32_t rows)> with_rows;
  bool on_gpu() const { return host_available_bytes.has_value(); }
};

struct ResolvedSizes {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  bool on_gpu = false;
  int32_t page_tokens = 0;  // P
  core::DType kv_type = core::DType::kBF16;
  int32_t num_blocks = 0;   // N: homes with a host tier, else places in the device tier
  int64_t block_bytes = 0;  // pages of one block, over its columns
  int64_t kv_bytes = 0;     // num_blocks * block_bytes
  // The rest of the plan of memory; 0 where a mechanism is off.
  core::PageShape page;
  core::RingShape ring;          // of streaming heads, when they keep no pages in blocks
  int32_t num_rings = 0;         // sequences that can run; caps max_num_seqs
  int64_t ring_bytes = 0;        // of all rings
  int64_t stats_bytes = 0;       // of all blocks, in the device tier
  int64_t open_bytes = 0;        // BF16 pages being filled, quantised KV
  int32_t num_frames = 0;        // rows of frames, with a host tier
  int64_t frame_bytes = 0;       // of one row, over its columns
  int32_t scratch_frames = 0;    // single pages, for misses that find no row
  int64_t scratch_bytes = 0;     // these, and scores and lists of the rows of one layer
  int64_t tables_bytes = 0;      // residency and selection, per sequence; a GPU's host tier
  int32_t activation_pages = 0;  // of P tokens each: prefills that wait between layers
  int64_t activation_bytes = 0;  // of all of them
  int64_t device_bytes = 0;      // all of the device tier together: what --device-memory bounds
  int64_t host_bytes = 0;        // homes
  int32_t context_max = 0;       // tokens of one sequence, prompt and output; num_blocks hold it
  int64_t weights_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t staging_bytes = 0;
  int64_t runtime_bytes = 0;  // left free on a GPU, beside weights and device tier
};

// Errors: kInvalidArgument (an option outside its range), kTooLarge (it does not fit); the message
// says which option to change and to what.
base::Result<ResolvedSizes> resolve(const EngineOptions& options, const core::ModelConfig& model,
                                    const MemorySizes& memory);

// The sizes as a table for people, one line each.
std::string format_table(const ResolvedSizes& sizes);

}  // namespace engine
