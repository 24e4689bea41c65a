#include "apps/presets.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "apps/size_option.h"

namespace apps {
namespace {

using base::Code;
using base::error;

constexpr int32_t kBudgetTokens = 2048;
constexpr int64_t kHostMemoryAuto = 0;

core::TierOptions offloaded() {
  core::TierOptions tiers;
  tiers.host_memory_bytes = kHostMemoryAuto;
  return tiers;
}

std::array<Preset, 6> make_presets() {
  const Preset dense{.name = "dense"};  // vLLM
  Preset sparse{.name = "sparse"};      // vLLM-S
  sparse.sparse.budget_tokens = kBudgetTokens;
  Preset sparse_offload = sparse;  // vLLM-SO
  sparse_offload.name = "sparse-offload";
  sparse_offload.tiers = offloaded();
  sparse_offload.tiers.load = core::LoadMethod::kMemcpy;
  sparse_offload.tiers.save = core::SaveMethod::kMemcpy;
  Preset full = sparse;  // SparseServe
  full.name = "full";
  full.tiers = offloaded();
  full.tiers.admission = core::Admission::kWorkingSet;
  full.tiers.prefill = core::Prefill::kLayer;
  Preset lserve = sparse;  // LServe
  lserve.name = "lserve";
  lserve.page_tokens = 64;
  lserve.sparse.logical_page_tokens = 16;
  lserve.sparse.page_stats = core::PageStatsKind::kMinMax;
  lserve.sparse.reuse_interval = 4;
  lserve.needs_heads = true;
  Preset duo = dense;  // DuoAttention
  duo.name = "duo";
  duo.needs_heads = true;
  return {dense, sparse, sparse_offload, full, lserve, duo};
}

// The enumerator that core::name() spells like `text`.
template <typename Enum>
base::Result<Enum> parse_name(const char* flag, const std::string& text, Enum last) {
  std::string known;
  for (int value = 0; value <= static_cast<int>(last); ++value) {
    const std::string_view spelled = core::name(static_cast<Enum>(value));
    if (text == spelled) return static_cast<Enum>(value);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", spelled);
  }
  return error(Code::kInvalidArgument, "{} '{}' is unknown: expected one of {}", flag, text, known);
}

// The first of `flags` that was given, as text; empty: none was.
struct Given {
  const char* flag;
  bool given;
};
const char* first_given(std::initializer_list<Given> flags) {
  for (const Given& one : flags) {
    if (one.given) return one.flag;
  }
  return nullptr;
}

base::Result<void> apply_pages(const KvFlags& flags, KvChoice* choice) {
  choice->page_tokens = flags.page_size.value_or(choice->page_tokens);
  core::SparseOptions& sparse = choice->sparse;
  // A smaller page takes the preset's logical pages with it; only what was asked for can be wrong.
  sparse.logical_page_tokens =
      flags.logical_page_size.value_or(std::min(sparse.logical_page_tokens, choice->page_tokens));
  const int32_t logical = sparse.logical_page_tokens;
  if (logical < 16 || choice->page_tokens % logical != 0) {
    return error(Code::kInvalidArgument,
                 "--logical-page-size {} does not divide --page-size {}: give 16, 32 or 64, and no "
                 "more than the page",
                 logical, choice->page_tokens);
  }
  return {};
}

base::Result<void> apply_selection(const Preset& preset, const KvFlags& flags, KvChoice* choice) {
  core::SparseOptions& sparse = choice->sparse;
  if (sparse.budget_tokens == 0) {
    const char* flag = first_given({{"--budget", flags.budget.has_value()},
                                    {"--logical-page-size", flags.logical_page_size.has_value()},
                                    {"--page-stats", flags.page_stats.has_value()},
                                    {"--reuse-interval", flags.reuse_interval.has_value()},
                                    {"--dense-layers", flags.dense_layers.has_value()}});
    if (flag == nullptr) return {};
    return error(Code::kInvalidArgument,
                 "{} belongs to selection, and --preset {} attends to all pages: use --preset {}",
                 flag, preset.name, preset.needs_heads ? "lserve" : "sparse");
  }
  sparse.budget_tokens = flags.budget.value_or(sparse.budget_tokens);
  sparse.reuse_interval = flags.reuse_interval.value_or(sparse.reuse_interval);
  sparse.dense_layers = flags.dense_layers.value_or(sparse.dense_layers);
  if (flags.page_stats) {
    ASSIGN_OR_RETURN(sparse.page_stats,
                     parse_name("--page-stats", *flags.page_stats, core::PageStatsKind::kMean));
  }
  const int32_t page = choice->page_tokens;
  const int32_t least = (sparse.sink_pages + 1) * page;
  if (sparse.budget_tokens < least) {
    return error(Code::kInvalidArgument,
                 "--budget {} is below {}, the first and the last page of {} tokens: raise it, or "
                 "use --preset dense to attend to all pages",
                 sparse.budget_tokens, least, page);
  }
  if (sparse.budget_tokens % page != 0) {
    const int32_t below = sparse.budget_tokens / page * page;
    return error(Code::kInvalidArgument,
                 "--budget {} is no multiple of --page-size {}: give {} or {}",
                 sparse.budget_tokens, page, below, below + page);
  }
  return {};
}

base::Result<void> apply_heads(const Preset& preset, const KvFlags& flags, KvChoice* choice) {
  const bool none = flags.heads && *flags.heads == "none";
  if (flags.heads && !none) choice->heads_path = *flags.heads;
  // lserve without streaming heads is an ablation, duo without them is dense.
  const bool ablation = none && choice->sparse.budget_tokens > 0;
  if (preset.needs_heads && choice->heads_path.empty() && !ablation) {
    return error(Code::kInvalidArgument,
                 "--preset {} needs a heads file: give --heads FILE; `spillway calibrate MODEL` "
                 "writes one",
                 preset.name);
  }
  const char* flag =
      first_given({{"--sink", flags.sink.has_value()}, {"--local", flags.local.has_value()}});
  if (flag != nullptr && choice->heads_path.empty()) {
    return error(Code::kInvalidArgument,
                 "{} belongs to the streaming heads of a heads file: give --heads FILE", flag);
  }
  choice->sink_tokens = flags.sink;
  choice->local_tokens = flags.local;
  return {};
}

base::Result<void> apply_host_memory(const Preset& preset, const KvFlags& flags,
                                     core::TierOptions* tiers) {
  if (!flags.host_memory) return {};
  if (preset.sparse.budget_tokens == 0) {
    return error(Code::kInvalidArgument,
                 "--host-memory needs selection, and --preset {} attends to all pages: use "
                 "--preset sparse-offload or full",
                 preset.name);
  }
  ASSIGN_OR_RETURN(const int64_t bytes, parse_size_option("--host-memory", *flags.host_memory));
  if (bytes == 0) {
    return error(
        Code::kInvalidArgument,
        "--host-memory 0 holds no page: leave it out for half of what is free, or use --preset "
        "sparse to keep pages in device memory alone");
  }
  tiers->host_memory_bytes = bytes;
  return {};
}

base::Result<void> refuse_without_host_tier(const Preset& preset, const KvFlags& flags) {
  const bool working_set = flags.admission && *flags.admission != "none";
  const bool layer = flags.prefill && *flags.prefill != "chunked";
  const char* flag = first_given({{"--load-method", flags.load_method.has_value()},
                                  {"--save-method", flags.save_method.has_value()},
                                  {"--save-granularity", flags.save_granularity.has_value()},
                                  {"--gather-overlap", flags.gather_overlap.has_value()},
                                  {"--admission", working_set},
                                  {"--working-set-window", flags.working_set_window.has_value()},
                                  {"--prefill", layer},
                                  {"--max-inject-tokens", flags.max_inject_tokens.has_value()},
                                  {"--disk-path", flags.disk_path.has_value()},
                                  {"--disk-memory", flags.disk_memory.has_value()}});
  if (flag == nullptr) return {};
  return error(Code::kInvalidArgument,
               "{} needs a host tier, and --preset {} has none: add --host-memory SIZE, or use "
               "--preset full",
               flag, preset.name);
}

base::Result<void> apply_prefill(const KvFlags& flags, core::TierOptions* tiers) {
  if (flags.prefill) {
    ASSIGN_OR_RETURN(tiers->prefill,
                     parse_name("--prefill", *flags.prefill, core::Prefill::kLayer));
  }
  const bool layer = tiers->prefill == core::Prefill::kLayer;
  if (layer && flags.chunk_size) {
    return error(Code::kInvalidArgument,
                 "--chunk-size belongs to --prefill chunked; --max-inject-tokens bounds a step of "
                 "--prefill layer");
  }
  if (!layer && flags.max_inject_tokens) {
    return error(Code::kInvalidArgument,
                 "--max-inject-tokens belongs to --prefill layer; --chunk-size bounds a step of "
                 "--prefill chunked");
  }
  const char* own = first_given({{"--chunk-size", flags.chunk_size.has_value()},
                                 {"--max-inject-tokens", flags.max_inject_tokens.has_value()}});
  if (own != nullptr && flags.long_prefill_tokens) {
    return error(Code::kInvalidArgument,
                 "--long-prefill-token-threshold is {} here, and both are given: leave one out",
                 own);
  }
  tiers->chunk_tokens = flags.chunk_size.value_or(tiers->chunk_tokens);
  tiers->max_inject_tokens = flags.max_inject_tokens.value_or(tiers->max_inject_tokens);
  return {};
}

base::Result<void> apply_disk(const KvFlags& flags, core::TierOptions* tiers) {
  if (flags.disk_path.has_value() != flags.disk_memory.has_value()) {
    return error(Code::kInvalidArgument,
                 "--disk-path and --disk-memory go together: a folder, and how much of it");
  }
  if (!flags.disk_path) return {};
  if (flags.disk_path->empty()) {
    return error(Code::kInvalidArgument, "--disk-path is empty: name a folder");
  }
  tiers->disk_path = *flags.disk_path;
  ASSIGN_OR_RETURN(tiers->disk_memory_bytes,
                   parse_size_option("--disk-memory", *flags.disk_memory));
  if (tiers->disk_memory_bytes == 0) {
    return error(Code::kInvalidArgument, "--disk-memory 0 holds no page: raise it");
  }
  return {};
}

base::Result<void> apply_tiers(const Preset& preset, const KvFlags& flags, KvChoice* choice) {
  core::TierOptions& tiers = choice->tiers;
  RETURN_IF_ERROR(apply_host_memory(preset, flags, &tiers));
  if (!tiers.host_memory_bytes) RETURN_IF_ERROR(refuse_without_host_tier(preset, flags));
  if (flags.load_method) {
    ASSIGN_OR_RETURN(tiers.load,
                     parse_name("--load-method", *flags.load_method, core::LoadMethod::kStaged));
  }
  if (flags.save_method) {
    ASSIGN_OR_RETURN(tiers.save,
                     parse_name("--save-method", *flags.save_method, core::SaveMethod::kExtents));
  }
  if (flags.save_granularity) {
    ASSIGN_OR_RETURN(
        tiers.save_granularity,
        parse_name("--save-granularity", *flags.save_granularity, core::SaveGranularity::kStep));
  }
  if (flags.gather_overlap) {
    tiers.gather_overlap = *flags.gather_overlap == "on";
    if (!tiers.gather_overlap && *flags.gather_overlap != "off") {
      return error(Code::kInvalidArgument, "--gather-overlap '{}' is unknown: expected on or off",
                   *flags.gather_overlap);
    }
  }
  if (flags.admission) {
    ASSIGN_OR_RETURN(tiers.admission,
                     parse_name("--admission", *flags.admission, core::Admission::kWorkingSet));
  }
  tiers.working_set_window = flags.working_set_window.value_or(tiers.working_set_window);
  RETURN_IF_ERROR(apply_prefill(flags, &tiers));
  return apply_disk(flags, &tiers);
}

}  // namespace

std::span<const Preset> presets() {
  static const std::array<Preset, 6> made = make_presets();
  return made;
}

const Preset* find_preset(std::string_view name) {
  for (const Preset& preset : presets()) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

base::Result<KvChoice> choose_kv(std::string_view name, const KvFlags& flags) {
  const Preset* preset = find_preset(name);
  if (preset == nullptr) {
    return error(
        Code::kInvalidArgument,
        "--preset '{}' is unknown: expected dense, sparse, sparse-offload, full, lserve or "
        "duo",
        name);
  }
  KvChoice choice{.sparse = preset->sparse,
                  .tiers = preset->tiers,
                  .page_tokens = preset->page_tokens,
                  .heads_path = {}};
  RETURN_IF_ERROR(apply_pages(flags, &choice));
  RETURN_IF_ERROR(apply_selection(*preset, flags, &choice));
  RETURN_IF_ERROR(apply_heads(*preset, flags, &choice));
  RETURN_IF_ERROR(apply_tiers(*preset, flags, &choice));
  return choice;
}

std::string set_prompt_pace(const KvFlags& flags, const PaceBasis& basis,
                            core::TierOptions* tiers) {
  if (basis.on_gpu && !flags.chunk_size) {
    tiers->chunk_tokens = std::max(tiers->chunk_tokens, basis.rows_max);
  }
  if (basis.on_gpu && !flags.max_inject_tokens) {  // the same pace either way
    tiers->max_inject_tokens = int64_t{tiers->chunk_tokens} * basis.num_layers;
  }
  if (!flags.long_prefill_tokens) return {};
  const int32_t threshold = *flags.long_prefill_tokens;
  if (tiers->prefill == core::Prefill::kLayer) {
    tiers->max_inject_tokens = int64_t{threshold} * basis.num_layers;
    return fmt::format("--long-prefill-token-threshold {} is --max-inject-tokens {} ({} layers)",
                       threshold, tiers->max_inject_tokens, basis.num_layers);
  }
  tiers->chunk_tokens = threshold;
  return fmt::format("--long-prefill-token-threshold {0} is --chunk-size {0}", threshold);
}

}  // namespace apps
