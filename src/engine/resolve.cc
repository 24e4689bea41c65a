#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/sizes.h"
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

base::Result<void> check_range(const char* flag, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return {};
  return error(Code::kInvalidArgument, "{} is {}: it must be between {} and {}", flag, value, min,
               max);
}

base::Result<void> check_options(const EngineOptions& options, const core::ModelConfig& model) {
  RETURN_IF_ERROR(check_range("--max-num-seqs", options.max_num_seqs, 1, 4096));
  RETURN_IF_ERROR(
      check_range("--max-num-batched-tokens", options.max_num_batched_tokens, 1, 65536));
  RETURN_IF_ERROR(check_range("--max-num-queued-reqs", options.inbox_capacity, 1, 65536));
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
  if (options.kv_type != core::DType::kBF16 && options.kv_type != core::DType::kF16 &&
      options.kv_type != core::DType::kF32) {
    return error(Code::kInvalidArgument, "--kv-cache-dtype is {}: it must be BF16, F16 or F32",
                 core::info(options.kv_type).name);
  }
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

int64_t blocks_for(int64_t tokens, int32_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

// Bytes for KV pages.
base::Result<int64_t> kv_budget(const EngineOptions& options, const MemorySizes& memory,
                                int64_t kv_bytes_useful) {
  const int64_t beside = memory.workspace_bytes + memory.staging_bytes;
  const int64_t left = memory.available_bytes - memory.weights_bytes;
  if (options.device_memory_bytes) {
    const int64_t asked = *options.device_memory_bytes;
    if (asked > left) {
      return error(Code::kTooLarge,
                   "--device-memory {} beside {} of weights is over the {} of this machine: lower "
                   "it to {} or less",
                   format_bytes(asked), format_bytes(memory.weights_bytes),
                   format_bytes(memory.available_bytes), advise_at_most(left));
    }
    if (asked <= beside) {
      return error(Code::kTooLarge,
                   "--device-memory {} leaves nothing for KV pages: workspace and staging take {}; "
                   "raise it, or lower --max-num-batched-tokens from {}",
                   format_bytes(asked), format_bytes(beside), options.max_num_batched_tokens);
    }
    return asked - beside;
  }
  if (left <= beside) {
    return error(Code::kTooLarge,
                 "weights {} and workspace {} are over the {} of this machine: lower "
                 "--max-num-batched-tokens from {}, or take a smaller model",
                 format_bytes(memory.weights_bytes), format_bytes(beside),
                 format_bytes(memory.available_bytes), options.max_num_batched_tokens);
  }
  return std::min((left - beside) / 2, kv_bytes_useful);
}

}  // namespace

base::Result<ResolvedSizes> resolve(const EngineOptions& options, const core::ModelConfig& model,
                                    const MemorySizes& memory) {
  CHECK(
      model.num_layers > 0 && model.num_kv_heads > 0 && model.head_dim > 0 && model.context_max > 0,
      "the model is not checked");
  RETURN_IF_ERROR(check_options(options, model));
  ResolvedSizes sizes;
  sizes.max_num_seqs = options.max_num_seqs;
  sizes.max_num_batched_tokens = options.max_num_batched_tokens;
  sizes.page_tokens = options.page_tokens;
  sizes.kv_type = options.kv_type;
  sizes.weights_bytes = memory.weights_bytes;
  sizes.workspace_bytes = memory.workspace_bytes;
  sizes.staging_bytes = memory.staging_bytes;
  sizes.block_bytes = int64_t{model.num_layers} * model.num_kv_heads * 2 * options.page_tokens *
                      core::row_bytes(options.kv_type, model.head_dim);

  const int32_t context = options.max_model_len.value_or(model.context_max);
  const int64_t blocks_a_sequence = blocks_for(context, options.page_tokens);
  const int64_t bytes_a_sequence = blocks_a_sequence * sizes.block_bytes;
  ASSIGN_OR_RETURN(const int64_t kv_bytes,
                   kv_budget(options, memory, bytes_a_sequence * options.max_num_seqs));
  const int64_t num_blocks =
      std::min<int64_t>(kv_bytes / sizes.block_bytes, std::numeric_limits<int32_t>::max() / 2);
  const int64_t tokens_max = num_blocks * options.page_tokens;
  const int64_t memory_needed = bytes_a_sequence + memory.workspace_bytes + memory.staging_bytes;
  if (num_blocks == 0 || (options.max_model_len && tokens_max < context)) {
    return error(Code::kTooLarge,
                 "{} tokens need {} of KV pages, {} are there: lower --max-model-len to {} or "
                 "raise --device-memory to {}",
                 context, format_bytes(bytes_a_sequence), format_bytes(kv_bytes), tokens_max,
                 advise_at_least(memory_needed));
  }
  sizes.num_blocks = static_cast<int32_t>(num_blocks);
  sizes.kv_bytes = num_blocks * sizes.block_bytes;
  sizes.context_max = static_cast<int32_t>(std::min<int64_t>(context, tokens_max));
  return sizes;
}

std::string format_table(const ResolvedSizes& sizes) {
  const auto line = [](const char* what, int64_t bytes, const std::string& detail) {
    return fmt::format("{:<10} {:>10}  {}\n", what, format_bytes(bytes), detail);
  };
  const int64_t total =
      sizes.weights_bytes + sizes.kv_bytes + sizes.workspace_bytes + sizes.staging_bytes;
  std::string table = line("weights", sizes.weights_bytes, "");
  table +=
      line("KV pages", sizes.kv_bytes,
           fmt::format("{} blocks of {} tokens, {}, {} each", sizes.num_blocks, sizes.page_tokens,
                       core::info(sizes.kv_type).name, format_bytes(sizes.block_bytes)));
  table += line("workspace", sizes.workspace_bytes,
                fmt::format("steps of {} rows", sizes.max_num_batched_tokens));
  table += line("staging", sizes.staging_bytes, "");
  table +=
      line("total", total,
           fmt::format("{} sequences of at most {} tokens", sizes.max_num_seqs, sizes.context_max));
  return table;
}

}  // namespace engine
