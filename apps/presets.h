// The presets: whole systems of the papers as values of one engine, and the flags that change one
// value of them, so that every ablation is one command.
//
// Pure. A preset is data (kPresets); choose_kv() lays the flags over it and refuses what
// contradicts: a flag that would change nothing is an error that names it and what to do, never
// silently ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "core/kv_options.h"

namespace apps {

struct Preset {
  std::string_view name;
  core::SparseOptions sparse;
  core::TierOptions tiers;  // host_memory_bytes 0: a host tier of the size that resolve() finds
  int32_t page_tokens = 32;
  bool needs_heads = false;  // means nothing without a heads file
};

// dense, sparse, sparse-offload, full, lserve, duo.
std::span<const Preset> presets();
const Preset* find_preset(std::string_view name);  // null: no such preset

// What was given on the command line beside --preset; nothing: the preset's own value. Sizes and
// names are text as typed.
struct KvFlags {
  std::optional<int32_t> page_size;
  // Selection.
  std::optional<int32_t> budget, logical_page_size, reuse_interval, dense_layers;
  std::optional<std::string> page_stats;
  // Streaming heads.
  std::optional<std::string> heads;  // a path, or none
  std::optional<int32_t> sink, local;
  // Tiers.
  std::optional<std::string> host_memory, load_method, save_method, save_granularity;
  std::optional<std::string> admission, prefill, gather_overlap;  // that: on, off
  std::optional<int32_t> working_set_window, chunk_size;
  std::optional<int64_t> max_inject_tokens;
  std::optional<int32_t> long_prefill_tokens;  // vLLM's --long-prefill-token-threshold
  std::optional<std::string> disk_path, disk_memory;
};

// What the engine is to do, and which heads file to read.
struct KvChoice {
  core::SparseOptions sparse;
  core::TierOptions tiers;
  int32_t page_tokens = 0;
  std::string heads_path;                            // empty: none
  std::optional<int32_t> sink_tokens, local_tokens;  // instead of the heads file's
};

// Errors: kInvalidArgument, naming the flag and what to give instead.
base::Result<KvChoice> choose_kv(std::string_view preset, const KvFlags& flags);

// What the pace of prompts hangs on beside the flags.
struct PaceBasis {
  int32_t num_layers = 0;
  int32_t rows_max = 0;  // of a step
  bool on_gpu = false;
};

// Bounds how much of prompts a step computes, in choose_kv()'s `tiers`: chunked or by layers, as
// many tokens either way. Returns what vLLM's option became, for people; "" where it was not given.
std::string set_prompt_pace(const KvFlags& flags, const PaceBasis& basis, core::TierOptions* tiers);

}  // namespace apps
