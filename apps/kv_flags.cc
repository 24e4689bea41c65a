#include "apps/kv_flags.h"

#include <string_view>

namespace apps {
namespace {

constexpr const char* kBehaviour = "Behaviour";
constexpr const char* kSelection = "Selection and streaming heads";
constexpr const char* kTiers = "Memory tiers";

std::string check_preset(const std::string& name) {
  if (find_preset(name) == nullptr) {
    std::string known;
    for (const Preset& preset : presets()) {
      known += (known.empty() ? "" : ", ") + std::string(preset.name);
    }
    return "preset '" + name + "' is unknown: expected one of " + known;
  }
  return {};
}

void add_selection_options(CLI::App& command, KvFlags* f) {
  command
      .add_option("--budget", f->budget, "tokens that a decode row attends to, whole pages (2048)")
      ->check(CLI::Range(0, 1 << 24))
      ->group(kSelection);
  command.add_option("--page-size", f->page_size, "tokens a page: 16, 32 or 64 (32; lserve 64)")
      ->check(CLI::IsMember({16, 32, 64}))
      ->group(kSelection);
  command
      .add_option("--logical-page-size", f->logical_page_size,
                  "tokens that share statistics: 16, 32 or 64, at most a page (32; lserve 16)")
      ->check(CLI::IsMember({16, 32, 64}))
      ->group(kSelection);
  command
      .add_option("--page-stats", f->page_stats,
                  "what pages are chosen by: cuboid-mean, min-max, mean-std or mean (cuboid-mean; "
                  "lserve min-max)")
      ->group(kSelection);
  command
      .add_option("--reuse-interval", f->reuse_interval,
                  "steps that a selection serves; 1: none is used again (1; lserve 4)")
      ->check(CLI::Range(1, 4096))
      ->group(kSelection);
  command
      .add_option("--dense-layers", f->dense_layers, "first layers that attend to all pages (0)")
      ->check(CLI::Range(0, 4096))
      ->group(kSelection);
  command
      .add_option("--heads", f->heads,
                  "heads file that names the streaming heads, or none (none; lserve and duo need "
                  "one)")
      ->group(kSelection);
  command.add_option("--sink", f->sink, "first tokens that streaming heads see (the heads file's)")
      ->check(CLI::Range(0, 1 << 24))
      ->group(kSelection);
  command
      .add_option("--local", f->local, "last tokens that streaming heads see (the heads file's)")
      ->check(CLI::Range(1, 1 << 24))
      ->group(kSelection);
}

void add_tier_options(CLI::App& command, KvFlags* f) {
  command
      .add_option("--host-memory", f->host_memory,
                  "memory for the homes of pages, such as 16GiB (half of what is free); turns the "
                  "host tier on")
      ->group(kTiers);
  command
      .add_option("--load-method", f->load_method,
                  "host to device: auto, memcpy, batched, uva, bulk, uva-page or staged (auto; "
                  "sparse-offload memcpy)")
      ->group(kTiers);
  command
      .add_option("--gather-overlap", f->gather_overlap,
                  "on a GPU: on, rows attend while missed pages come, or off (on)")
      ->group(kTiers);
  command
      .add_option("--save-method", f->save_method,
                  "device to host: auto, memcpy, gpu-direct, staged or extents (auto; "
                  "sparse-offload memcpy)")
      ->group(kTiers);
  command
      .add_option("--save-granularity", f->save_granularity,
                  "what leaves at a time while decoding: pages when they are full, or step: what "
                  "each step wrote (pages)")
      ->group(kTiers);
  command
      .add_option("--admission", f->admission,
                  "working-set: run what fits the device together; none (full working-set)")
      ->group(kTiers);
  command
      .add_option("--working-set-window", f->working_set_window,
                  "steps whose selections make a working set (12)")
      ->check(CLI::Range(1, 4096))
      ->group(kTiers);
  command
      .add_option("--prefill", f->prefill,
                  "chunked, or layer: one layer of a prompt at a time (full layer)")
      ->group(kTiers);
  command.add_option("--chunk-size", f->chunk_size, "prompt rows in a step, with chunked (2048)")
      ->check(CLI::Range(1, 1 << 24))
      ->group(kTiers);
  command
      .add_option("--max-inject-tokens", f->max_inject_tokens,
                  "prompt tokens x layers in a step, with layer (2048 x layers)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->group(kTiers);
  command
      .add_option("--disk-path", f->disk_path,
                  "folder for cached pages that leave host memory (none); kept across restarts")
      ->group(kTiers);
  command
      .add_option("--disk-memory", f->disk_memory,
                  "how much of it, such as 100GiB; goes with --disk-path")
      ->group(kTiers);
}

}  // namespace

void add_kv_options(CLI::App& command, std::string* preset, KvFlags* flags) {
  command
      .add_option("--preset", *preset,
                  "attention and memory policy: dense, sparse, sparse-offload, full, lserve or "
                  "duo; the flags below change "
                  "single values of it")
      ->check(CLI::Validator(check_preset, ""))
      ->capture_default_str()
      ->group(kBehaviour);
  add_selection_options(command, flags);
  add_tier_options(command, flags);
}

}  // namespace apps
