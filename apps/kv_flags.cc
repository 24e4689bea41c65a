#include "apps/kv_flags.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace apps {
namespace {

constexpr const char* kBehaviour = "Behaviour";
constexpr const char* kSelection = "Selection and streaming heads";
constexpr const char* kTiers = "Memory tiers";

// Presets and flags whose mechanism is not built: known, so that a user is told the truth instead
// of "unknown option".
constexpr std::array<std::string_view, 2> kUnbuiltPresets = {"sparse-offload", "full"};
constexpr std::array kUnbuilt = {
    "--host-memory", "--load-method", "--save-method",       "--admission", "--working-set-window",
    "--prefill",     "--chunk-size",  "--max-inject-tokens", "--disk-path", "--disk-memory"};

std::string check_preset(const std::string& name) {
  if (find_preset(name) == nullptr) {
    std::string known;
    for (const Preset& preset : presets()) {
      known += (known.empty() ? "" : ", ") + std::string(preset.name);
    }
    return "preset '" + name + "' is unknown: expected one of " + known;
  }
  if (std::ranges::find(kUnbuiltPresets, name) != kUnbuiltPresets.end()) {
    return "preset '" + name +
           "' needs memory tiers, which this version does not have: use --preset sparse";
  }
  return {};
}

void refuse_unbuilt(CLI::App& command) {
  for (const char* flag : kUnbuilt) {
    command
        .add_option_function<std::string>(
            flag,
            [flag](const std::string&) {
              throw CLI::ValidationError(
                  flag, "belongs to memory tiers, which this version does not have");
            },
            "")
        ->group("");
  }
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

}  // namespace

void add_kv_options(CLI::App& command, std::string* preset, KvFlags* flags) {
  command
      .add_option(
          "--preset", *preset,
          "attention and memory policy: dense, sparse, lserve or duo; the flags below change "
          "single values of it")
      ->check(CLI::Validator(check_preset, ""))
      ->capture_default_str()
      ->group(kBehaviour);
  add_selection_options(command, flags);
  refuse_unbuilt(command);
}

}  // namespace apps
