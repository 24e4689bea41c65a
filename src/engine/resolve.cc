#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "base/sizes.h"
#include "engine/memory_plan.h"
#include "engine/options.h"

namespace engine {
namespace {

using base::Code;
using base::error;
using base::format_bytes;

// Advice is rounded to the side on which it works.
std::string advise_at_most(int64_t bytes) {
  return fmt::format("{}MiB", std::max<int64_t>(0, bytes >> 20));
}
std::string advise_at_least(int64_t bytes) {
  return fmt::format("{}MiB", (bytes + (1 << 20) - 1) >> 20);
}
bool can_advise(int64_t bytes, int64_t left) {
  return bytes <= left >> 20 << 20;
}

// What fewer rows a step should leave room for, unless a length was asked for.
constexpr int32_t kContextUsual = 4096;

base::Result<void> check_range(const char* flag, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return {};
  return error(Code::kInvalidArgument, "{} is {}: it must be between {} and {}", flag, value, min,
               max);
}

// A budget needs a head that selects: dense layers and streaming heads may leave none.
base::Result<void> check_selecting(const EngineOptions& options, const core::ModelConfig& model) {
  if (options.sparse.budget_tokens == 0) return {};
  for (int32_t layer = options.sparse.dense_layers; layer < model.num_layers; ++layer) {
    for (int32_t head = 0; head < model.num_kv_heads; ++head) {
      if (!options.heads.at(layer, head).is_streaming()) return {};
    }
  }
  return error(Code::kInvalidArgument,
               "--dense-layers {} leaves no KV head that selects pages: lower it, or use --preset "
               "dense or duo to attend without selection",
               options.sparse.dense_layers);
}

// Of mechanisms that are on; budgets and page sizes are checked where presets are chosen.
base::Result<void> check_kv_options(const EngineOptions& options, const core::ModelConfig& model) {
  const core::SparseOptions& sparse = options.sparse;
  const core::TierOptions& tiers = options.tiers;
  RETURN_IF_ERROR(check_range("--reuse-interval", sparse.reuse_interval, 1, 4096));
  RETURN_IF_ERROR(check_range("--dense-layers", sparse.dense_layers, 0, model.num_layers));
  RETURN_IF_ERROR(check_range("--working-set-window", tiers.working_set_window, 1, 4096));
  RETURN_IF_ERROR(
      check_range("--chunk-size", tiers.chunk_tokens, options.page_tokens, int64_t{1} << 24));
  if (tiers.max_inject_tokens != 0) {
    RETURN_IF_ERROR(check_range("--max-inject-tokens", tiers.max_inject_tokens, options.page_tokens,
                                int64_t{1} << 40));
  }
  const bool quantised =
      options.kv_type == core::DType::kI8 || options.kv_type == core::DType::kF8E4M3;
  if (tiers.save_granularity == core::SaveGranularity::kStep && quantised) {
    return error(Code::kInvalidArgument,
                 "--save-granularity step saves rows as they are computed, and --kv-cache-dtype {} "
                 "makes pages of them when they are full: use --save-granularity pages",
                 core::info(options.kv_type).name);
  }
  if (tiers.host_memory_bytes && sparse.budget_tokens == 0) {
    return error(Code::kInvalidArgument, "--host-memory needs a --budget");
  }
  if (!options.heads.kinds.empty() &&
      std::ranges::all_of(options.heads.kinds, &core::HeadKind::is_streaming)) {
    return error(Code::kInvalidArgument,
                 "every KV head is a streaming head: one at least must see all tokens");
  }
  return check_selecting(options, model);
}

base::Result<void> check_options(const EngineOptions& options, const core::ModelConfig& model) {
  RETURN_IF_ERROR(check_range("--max-num-seqs", options.max_num_seqs, 1, 4096));
  RETURN_IF_ERROR(
      check_range("--max-num-batched-tokens", options.max_num_batched_tokens, 1, 65536));
  RETURN_IF_ERROR(check_range("--max-num-queued-reqs", options.inbox_capacity, 1, 65536));
  RETURN_IF_ERROR(
      check_range("--max-num-queued-tokens", options.inbox_tokens, 0, int64_t{1} << 40));
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    return error(Code::kInvalidArgument,
                 "--max-num-batched-tokens {} is below --max-num-seqs {}: raise it to {} or lower "
                 "--max-num-seqs to {}",
                 options.max_num_batched_tokens, options.max_num_seqs, options.max_num_seqs,
                 options.max_num_batched_tokens);
  }
  if (options.page_tokens != 16 && options.page_tokens != 32 && options.page_tokens != 64) {
    return error(Code::kInvalidArgument, "--page-size is {}: it must be 16, 32 or 64",
                 options.page_tokens);
  }
  constexpr std::array kKvTypes{core::DType::kBF16, core::DType::kF16, core::DType::kF32,
                                core::DType::kI8, core::DType::kF8E4M3};
  if (std::ranges::find(kKvTypes, options.kv_type) == kKvTypes.end()) {
    return error(Code::kInvalidArgument,
                 "--kv-cache-dtype is {}: it must be BF16, F16, F32, int8 or fp8_e4m3",
                 core::info(options.kv_type).name);
  }
  RETURN_IF_ERROR(check_kv_options(options, model));
  if (!options.max_model_len) return {};
  RETURN_IF_ERROR(check_range("--max-model-len", *options.max_model_len, 1,
                              std::numeric_limits<int32_t>::max()));
  if (*options.max_model_len > model.context_max) {
    return error(Code::kInvalidArgument,
                 "--max-model-len {} is over the model's context: lower it to {} or less",
                 *options.max_model_len, model.context_max);
  }
  return {};
}

// Finds the sizes: first what each tier may take, then the longest context that fits, then how many
// blocks and rows of frames the rest makes.
class Resolver {
 public:
  Resolver(const EngineOptions& options, const core::ModelConfig& model, const MemorySizes& memory)
      : options_(options),
        model_(model),
        memory_(memory),
        tiered_(options.tiers.host_memory_bytes.has_value()),
        context_wanted_(options.max_model_len.value_or(model.context_max)) {}

  base::Result<ResolvedSizes> resolve() {
    RETURN_IF_ERROR(limit_tiers());
    ASSIGN_OR_RETURN(const int32_t context, longest_context());
    return divide(fitted(context));
  }

 private:
  MemoryPlan plan(int32_t max_num_seqs, int32_t context) const {
    return MemoryPlan(options_, model_, memory_, max_num_seqs, context);
  }
  bool quantised() const {
    return options_.kv_type == core::DType::kI8 || options_.kv_type == core::DType::kF8E4M3;
  }
  // With as many sequences as asked for, or fewer: rings, which are whole sequences' worth of
  // memory, take half of what is left beside one sequence at most; the tables of the tiers, which
  // sequences of full length hardly share the frames of a small device among, a 32nd of it, and
  // tables and unfilled pages beside quantised ones a 16th.
  MemoryPlan fitted(int32_t context) const { return fitted(context, device_limit_); }
  MemoryPlan fitted(int32_t context, int64_t device_limit) const {
    int64_t seqs = options_.max_num_seqs;
    const MemoryPlan one = plan(1, context);
    if (uses_rings(options_)) {
      const int64_t left = std::max<int64_t>(0, device_limit - one.least_bytes());
      seqs = std::min(seqs, 1 + left / 2 / one.slot_bytes());
    } else if (tiered_ || quantised()) {
      const int64_t share = device_limit / (quantised() ? 16 : 32);
      seqs = std::clamp<int64_t>(share / one.slot_bytes(), 1, seqs);
    }
    return plan(static_cast<int32_t>(seqs), context);
  }

  // Device memory with which a context fits.
  int64_t device_bytes_for(int32_t context) const {
    const bool fewer = uses_rings(options_) || quantised() || tiered_;
    int64_t bytes = plan(fewer ? 1 : options_.max_num_seqs, context).least_bytes();
    while (fitted(context, bytes).least_bytes() > bytes) bytes += bytes / 64;
    return bytes;
  }

  // For errors: the memory that is short, and what CUDA itself takes of it.
  std::string available() const {
    return fmt::format("{} {}", format_bytes(memory_.available_bytes),
                       memory_.on_gpu() ? "that the GPU has free" : "of this machine");
  }
  std::string runtime(const char* before) const {
    if (memory_.runtime_bytes == 0) return "";
    return fmt::format("{}{} for CUDA itself", before, format_bytes(memory_.runtime_bytes));
  }

  base::Result<void> limit_tiers() {
    const int64_t beside = memory_.workspace_bytes + memory_.staging_bytes;
    const int64_t left = memory_.available_bytes - memory_.weights_bytes - memory_.runtime_bytes;
    if (options_.device_memory_bytes) {
      RETURN_IF_ERROR(check_device_memory(*options_.device_memory_bytes, beside, left));
    } else if (left <= 0) {
      return error(Code::kTooLarge, "weights {}{} are over the {}: take a smaller model",
                   format_bytes(memory_.weights_bytes), runtime(" and "), available());
    } else if (left <= beside) {
      const std::string lower = fewer_rows();
      return error(Code::kTooLarge, "weights {}{} and workspace {} are over the {}: {}",
                   format_bytes(memory_.weights_bytes), runtime(", "), format_bytes(beside),
                   available(), lower.empty() ? "take a smaller model" : lower);
    }
    if (tiered_) {
      host_limit_ = *options_.tiers.host_memory_bytes;
      const int64_t beside_host = options_.device_memory_bytes.value_or(beside);
      const int64_t host_left = memory_.host_available_bytes.value_or(left - beside_host);
      if (host_limit_ == 0) host_limit_ = host_left / 2;
      if (memory_.on_gpu() && host_limit_ > host_left) {
        return error(Code::kTooLarge,
                     "--host-memory {} is over the {} that the host has free: lower it to {} or "
                     "less",
                     format_bytes(host_limit_), format_bytes(host_left), advise_at_most(host_left));
      }
      if (host_limit_ > host_left) {
        return error(Code::kTooLarge,
                     "--host-memory {} beside {} of device memory and {} of weights is over the {} "
                     "of this machine: lower it to {} or less",
                     format_bytes(host_limit_), format_bytes(beside_host),
                     format_bytes(memory_.weights_bytes), format_bytes(memory_.available_bytes),
                     advise_at_most(left - beside_host));
      }
    }
    // Half of what is left for pages; a GPU is there for nothing else.
    const int64_t usual = memory_.on_gpu() ? left : (left - host_limit_ + beside) / 2;
    device_limit_ = options_.device_memory_bytes.value_or(usual);
    return {};
  }

  base::Result<void> check_device_memory(int64_t asked, int64_t beside, int64_t left) const {
    if (left <= 0) {
      return error(Code::kTooLarge,
                   "weights {}{} are over the {}, and --device-memory is beside them: take a "
                   "smaller model",
                   format_bytes(memory_.weights_bytes), runtime(" and "), available());
    }
    if (asked > left) {
      return error(Code::kTooLarge,
                   "--device-memory {} beside {} of weights{} is over the {}: lower it to {} or "
                   "less",
                   format_bytes(asked), format_bytes(memory_.weights_bytes), runtime(" and "),
                   available(), advise_at_most(left));
    }
    if (asked > beside) return {};
    return error(
        Code::kTooLarge,
        "--device-memory {} leaves nothing for KV pages: workspace and staging take {}: {}",
        format_bytes(asked), format_bytes(beside), advise_room(left));
  }

  // Where --device-memory holds no pages: what to raise it to, or to lower instead.
  std::string advise_room(int64_t left) const {
    const int64_t needed =
        device_bytes_for(options_.max_model_len ? context_wanted_ : options_.page_tokens);
    const std::string raise =
        can_advise(needed, left) ? "raise it to " + advise_at_least(needed) : "";
    const std::string lower = fewer_rows();
    if (raise.empty() && lower.empty())
      return "nothing that is left is enough, take a smaller model";
    return raise + (raise.empty() || lower.empty() ? "" : ", or ") + lower;
  }

  // The most rows of a step with which all fits, and a context of `least` tokens. 0: none do.
  int32_t most_rows(EngineOptions options, int32_t least, int32_t* context) const {
    int32_t fitting = 0, over = options_.max_num_batched_tokens;
    while (over - fitting > 1) {
      const int32_t rows = fitting + (over - fitting) / 2;
      options.max_num_batched_tokens = rows;
      options.max_num_seqs = std::min(options_.max_num_seqs, rows);
      MemorySizes memory = memory_.with_rows(rows);
      memory.with_rows = nullptr;  // its errors give no advice of their own
      const auto sizes = Resolver(options, model_, memory).resolve();
      const bool fits = sizes.ok() && sizes->context_max >= least;
      if (fits) *context = sizes->context_max;
      (fits ? fitting : over) = rows;
    }
    return fitting;
  }

  // "lower --max-num-batched-tokens from 8192 to 512", with a short context where there is no other
  // way. Empty: there is none.
  std::string fewer_rows() const {
    if (!memory_.with_rows) return "";
    const auto lower = [&](int32_t rows) {
      return fmt::format("lower --max-num-batched-tokens from {} to {}",
                         options_.max_num_batched_tokens, rows);
    };
    int32_t context = 0;
    EngineOptions shorter = options_;
    for (int32_t least : {kContextUsual, 1024, 256, 1}) {
      const bool as_asked = least == kContextUsual;
      if (as_asked && options_.max_model_len) least = 1;  // all of it, that is
      const int32_t rows = most_rows(shorter, std::min(least, context_wanted_), &context);
      if (rows > 0 && as_asked) return lower(rows);
      if (rows > 0) return fmt::format("{} and --max-model-len to {}", lower(rows), context);
      shorter.max_model_len.reset();
    }
    return "";
  }

  bool fits_host(const MemoryPlan& plan) const {
    return !tiered_ || plan.blocks_min() * plan.home_bytes() <= host_limit_;
  }
  bool fits(const MemoryPlan& plan) const {
    return plan.least_bytes() <= device_limit_ && fits_host(plan);
  }

  base::Result<int32_t> longest_context() const {
    if (fits(fitted(context_wanted_))) return context_wanted_;
    int32_t fitting = 0, over = context_wanted_ / options_.page_tokens + 1;  // pages
    while (over - fitting > 1) {
      const int32_t middle = fitting + (over - fitting) / 2;
      (fits(fitted(middle * options_.page_tokens)) ? fitting : over) = middle;
    }
    if (fitting > 0 && !options_.max_model_len) return fitting * options_.page_tokens;
    return too_small(fitting * options_.page_tokens);
  }

  // `context` tokens would fit.
  base::Error too_small(int32_t context) const {
    const int32_t asked = options_.max_model_len ? context_wanted_ : options_.page_tokens;
    const MemoryPlan wanted = fitted(asked);
    const std::string shorter =
        context > 0 ? fmt::format("lower --max-model-len to {}", context) : "";
    if (wanted.least_bytes() > device_limit_) {
      const int64_t needed = device_bytes_for(asked);
      return error(Code::kTooLarge, "{} tokens need {} of device memory, {} are there: {}", asked,
                   format_bytes(needed), format_bytes(device_limit_),
                   advise_tokens(shorter, needed));
    }
    const int64_t homes = wanted.blocks_min() * wanted.home_bytes();
    return error(Code::kTooLarge,
                 "{} tokens need {} of homes, {} are there: {}raise --host-memory to {}", asked,
                 format_bytes(homes), format_bytes(host_limit_),
                 shorter.empty() ? "" : shorter + " or ", advise_at_least(homes));
  }

  // What to do where tokens need so much of the device; more than there is is not advised.
  std::string advise_tokens(const std::string& shorter, int64_t needed) const {
    const int64_t homes = tiered_ && !memory_.on_gpu() ? host_limit_ : 0;
    const int64_t left = memory_.available_bytes - memory_.weights_bytes - memory_.runtime_bytes;
    std::string advice = shorter;
    const auto add = [&](const char* between, const std::string& text) {
      if (!text.empty()) advice += (advice.empty() ? "" : between) + text;
    };
    if (can_advise(needed, left - homes)) {
      add(" or ", "raise --device-memory to " + advise_at_least(needed));
    } else if (shorter.empty()) {
      add(", or ", fewer_rows());
    }
    if (!tiered_) add(", or ", "give a host tier with --preset full");
    return advice.empty() ? "take a smaller model" : advice;
  }

  // Blocks: with a host tier as many homes as their statistics leave room for, a quarter of the
  // device at most; else places in the device tier.
  int64_t num_blocks(const MemoryPlan& plan) const {
    const int64_t useful = int64_t{plan.pages_max()} * plan.kv().max_num_seqs;
    const int64_t spare = device_limit_ - plan.least_bytes();
    int64_t blocks = plan.blocks_min();
    if (!tiered_) {
      blocks += spare / plan.device_block_bytes();
      if (!options_.device_memory_bytes) blocks = std::min(blocks, useful);
    } else {
      const int64_t stats = plan.device_block_bytes();
      const int64_t room =
          std::min(device_limit_ / 4, stats * plan.blocks_min() + spare / 2) / stats;
      blocks = std::max(blocks, std::min(host_limit_ / plan.home_bytes(), room));
      if (*options_.tiers.host_memory_bytes == 0) blocks = std::min(blocks, useful);
    }
    return std::min<int64_t>(blocks, std::numeric_limits<int32_t>::max() / 2);
  }

  ResolvedSizes divide(const MemoryPlan& plan) const {
    ResolvedSizes sizes;
    plan.describe(&sizes);
    sizes.max_num_batched_tokens = options_.max_num_batched_tokens;
    sizes.page_tokens = options_.page_tokens;
    sizes.kv_type = options_.kv_type;
    sizes.weights_bytes = memory_.weights_bytes;
    sizes.workspace_bytes = memory_.workspace_bytes;
    sizes.staging_bytes = memory_.staging_bytes;
    sizes.runtime_bytes = memory_.runtime_bytes;
    const int64_t blocks = num_blocks(plan);
    int64_t rows = 0;
    if (tiered_) {  // more rows than homes would stay empty
      rows = (device_limit_ - plan.with(blocks, 0)) / plan.row_bytes();
      rows = std::min(rows, blocks);
    }
    sizes.num_blocks = static_cast<int32_t>(blocks);
    sizes.num_frames = static_cast<int32_t>(rows);
    sizes.kv_bytes = blocks * sizes.block_bytes;
    sizes.host_bytes = tiered_ ? sizes.kv_bytes : 0;
    sizes.stats_bytes = blocks * (plan.device_block_bytes() - (tiered_ ? 0 : sizes.block_bytes));
    sizes.device_bytes = plan.with(blocks, rows);
    return sizes;
  }

  const EngineOptions& options_;
  const core::ModelConfig& model_;
  const MemorySizes& memory_;
  const bool tiered_;
  const int32_t context_wanted_;
  int64_t device_limit_ = 0, host_limit_ = 0;
};

}  // namespace

base::Result<ResolvedSizes> resolve(const EngineOptions& options, const core::ModelConfig& model,
                                    const MemorySizes& memory) {
  CHECK(
      model.num_layers > 0 && model.num_kv_heads > 0 && model.head_dim > 0 && model.context_max > 0,
      "the model is not checked");
  RETURN_IF_ERROR(check_options(options, model));
  return Resolver(options, model, memory).resolve();
}

std::string format_table(const ResolvedSizes& s) {
  std::string table;
  const auto line = [&](const char* what, int64_t bytes, const std::string& detail) {
    if (bytes > 0) table += fmt::format("{:<11} {:>10}  {}\n", what, format_bytes(bytes), detail);
  };
  const bool tiered = s.num_frames > 0;
  const std::string pages = fmt::format("of {} tokens, {}, {} each", s.page_tokens,
                                        core::info(s.kv_type).name, format_bytes(s.block_bytes));
  line("weights", s.weights_bytes, "");
  if (tiered) {
    line("frames", s.num_frames * s.frame_bytes,
         fmt::format("{} rows of {}", s.num_frames, format_bytes(s.frame_bytes)));
  } else {
    line("KV pages", s.kv_bytes, fmt::format("{} blocks {}", s.num_blocks, pages));
  }
  line("rings", s.ring_bytes,
       fmt::format("{} of {} pages a streaming head", s.num_rings, s.ring.frames()));
  line("statistics", s.stats_bytes,
       fmt::format("of {} blocks, logical pages of {} tokens", s.num_blocks,
                   s.page.logical_page_tokens));
  line("open pages", s.open_bytes, "BF16, until they are full");
  line("tables", s.tables_bytes, "selections and residency");
  line("scratch", s.scratch_bytes, fmt::format("{} frames, scores and lists", s.scratch_frames));
  line("activations", s.activation_bytes,
       fmt::format("of {} tokens between layers", s.activation_pages * s.page_tokens));
  line("workspace", s.workspace_bytes, fmt::format("steps of {} rows", s.max_num_batched_tokens));
  line("staging", s.staging_bytes, "");
  line("device", s.device_bytes, "all of these but the weights");
  line("CUDA", s.runtime_bytes, "left free for kernels, libraries and graphs");
  line("homes", s.host_bytes, fmt::format("{} blocks {}", s.num_blocks, pages));
  line("total", s.weights_bytes + s.device_bytes + s.runtime_bytes + s.host_bytes,
       fmt::format("{} sequences of at most {} tokens", s.max_num_seqs, s.context_max));
  return table;
}

}  // namespace engine
