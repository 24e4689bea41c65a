#include "apps/house.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "apps/completion.h"
#include "apps/find_model.h"
#include "apps/fingerprint.h"
#include "apps/gpu_advice.h"
#include "apps/heads_file.h"
#include "apps/progress.h"
#include "apps/size_option.h"
#include "base/log_event.h"
#include "base/sizes.h"
#include "engine/memory_plan.h"
#include "engine/options.h"
#include "engine/serving_engine.h"
#include "exec/cpu_executor.h"
#include "ops/op_table.h"

namespace apps {
namespace {

// Rows of a step unless an option says: a GPU needs thousands of them to be busy.
constexpr int32_t kRowsOnCpu = 1024, kRowsOnGpu = 8192;

base::Result<device::Isa> choose_isa(const std::string& name) {
  if (name == "auto") return device::detect_isa();
  return device::parse_isa(name);
}

core::DType kv_type(const std::string& name) {
  if (name == "f16") return core::DType::kF16;
  if (name == "f32") return core::DType::kF32;
  if (name == "int8") return core::DType::kI8;
  if (name == "fp8_e4m3") return core::DType::kF8E4M3;
  return core::DType::kBF16;
}

model::WeightsAs weights_as(const std::string& name) {
  if (name == "bf16") return model::WeightsAs::kBf16;
  if (name == "fp8") return model::WeightsAs::kFp8;
  return name == "quantised" ? model::WeightsAs::kQuantised : model::WeightsAs::kAuto;
}

// "llama 30 x 576, Q4_1": the type that most weight bytes have.
std::string describe_type(const load::ModelFiles& files) {
  std::map<core::DType, size_t> bytes;
  for (const auto& [name, tensor] : files.tensors) bytes[tensor.type] += tensor.bytes.size();
  auto most = std::max_element(bytes.begin(), bytes.end(),
                               [](const auto& a, const auto& b) { return a.second < b.second; });
  const core::ModelConfig& c = files.config;
  return fmt::format("{} {} x {}, {}", core::arch_name(c.arch), c.num_layers, c.model_dim,
                     core::info(most->first).name);
}

// Gives every row of the embedding a token: a model may have more rows than its tokenizer has
// texts, and may sample them.
void pad_vocabulary(int32_t vocab_size, core::TokenizerData* data) {
  const bool has_kinds = !data->kinds.empty();
  while (static_cast<int32_t>(data->tokens.size()) < vocab_size) {
    data->tokens.push_back(fmt::format("[PAD{}]", data->tokens.size()));
    if (has_kinds) data->kinds.push_back(core::TokenKind::kUnused);
  }
}

base::Result<std::unique_ptr<text::Tokenizer>> make_tokenizer(const load::ModelFiles& files) {
  core::TokenizerData data = files.tokenizer;
  if (!files.tokenizer_json.empty()) {
    ASSIGN_OR_RETURN(data, text::read_tokenizer_json(files.tokenizer_json, std::move(data)));
  }
  pad_vocabulary(files.config.vocab_size, &data);
  return text::Tokenizer::create(std::move(data));
}

base::Result<void> make_text(const ServingOptions& options, House* house) {
  const load::ModelFiles& files = *house->files;
  if (files.tokenizer_json.empty() && !files.has_tokenizer) {
    if (options.load_format == "dummy" || !options.needs_text) return {};
    return base::error(base::Code::kInvalidArgument,
                       "{}: no tokenizer in the model: expected tokenizer.json beside the weights",
                       options.model);
  }
  base::Result<std::unique_ptr<text::Tokenizer>> made = make_tokenizer(files);
  if (!made.ok()) {  // text/ knows no paths
    return base::error(made.error().code, "{}: {}", options.model, made.error().message);
  }
  house->tokenizer = std::move(made).value();
  // Models without a template that can be read get ChatML.
  std::string_view source = house->tokenizer->data().chat_template;
  if (source.empty()) source = text::kDefaultChatTemplate;
  base::Result<text::ChatTemplate> parsed = text::ChatTemplate::parse(source);
  if (!parsed.ok()) {
    LOG_WARN("the model's chat template is not usable, chat requests get ChatML: {}",
             parsed.error().message);
    parsed = text::ChatTemplate::parse(text::kDefaultChatTemplate);
    if (!parsed.ok()) return std::move(parsed).error();
  }
  house->chat_template = std::make_unique<text::ChatTemplate>(std::move(parsed).value());
  return {};
}

// The preset's values with the flags over them, and the heads that stream.
base::Result<void> choose_kv_options(const ServingOptions& options, const House& house,
                                     engine::EngineOptions* e) {
  const core::ModelConfig& c = house.files->config;
  ASSIGN_OR_RETURN(const KvChoice choice, choose_kv(options.preset, options.kv));
  e->sparse = choice.sparse;
  e->tiers = choice.tiers;
  e->page_tokens = choice.page_tokens;
  e->heads = c.windows;
  if (choice.heads_path.empty()) return {};
  ASSIGN_OR_RETURN(const core::HeadKinds file,
                   read_heads(choice.heads_path, c.num_layers, c.num_kv_heads,
                              {choice.sink_tokens, choice.local_tokens}));
  e->heads = merge_heads(c.windows, file);
  return {};
}

base::Result<engine::EngineOptions> engine_options(const ServingOptions& options,
                                                   const House& house) {
  engine::EngineOptions e;
  if (options.max_model_len > 0) e.max_model_len = options.max_model_len;
  e.kv_type = kv_type(options.kv_cache_dtype);
  e.prefix_cache = options.prefix_caching;
  e.deterministic = options.deterministic;
  e.residency_rate = options.kv_residency_rate;
  e.async_scheduling = options.async_scheduling;
  if (house.tokenizer != nullptr) e.eog_tokens = house.tokenizer->data().eog;
  e.max_num_batched_tokens = options.max_num_batched_tokens;
  e.max_num_seqs = options.max_num_seqs;
  e.inbox_capacity = options.max_num_queued_reqs;
  e.inbox_tokens = options.max_num_queued_tokens;
  RETURN_IF_ERROR(choose_kv_options(options, house, &e));
  if (!e.prefix_cache && !e.tiers.disk_path.empty()) {
    return base::error(base::Code::kInvalidArgument,
                       "--disk-path keeps cached prefixes, and the prefix cache is off");
  }
  if (!options.device_memory.empty() && !options.device_memory.ends_with('%')) {
    ASSIGN_OR_RETURN(e.device_memory_bytes,
                     parse_size_option("--device-memory", options.device_memory));
  }
  return e;
}

// Sizes of model and executor that follow from the engine's options and a longest context.
model::ModelLimits model_limits(const engine::EngineOptions& e, int32_t context_max) {
  return {.rows_max = e.max_num_batched_tokens,
          .decode_rows_max = e.max_num_batched_tokens,
          .logits_rows_max = exec::kLogitsRows,
          .context_max = context_max,
          .page_tokens = e.page_tokens};
}

engine::MemorySizes cpu_memory(const engine::EngineOptions& e, const House& house,
                               const ops::OpTable& ops) {
  const core::ModelConfig& c = house.files->config;
  const int32_t context = std::min(e.max_model_len.value_or(c.context_max), c.context_max);
  const int threads = house.pool->num_threads();
  engine::MemorySizes memory;
  memory.available_bytes = device::memory_available_bytes();
  memory.weights_bytes = house.files->weight_bytes;
  memory.workspace_bytes = model::model_workspace_bytes(c, model_limits(e, context), ops, threads);
  memory.num_threads = threads;
  memory.staging_bytes = exec::CpuExecutor::staging_bytes(c, e.max_num_batched_tokens, threads);
  return memory;
}

// What both its memory and the executor itself are asked with; `sizes` may be a guess.
GpuExecutorOptions gpu_executor(const engine::EngineOptions& e, const engine::ResolvedSizes& sizes,
                                const exec::SelectionTap* tap, const House& house) {
  const core::ModelConfig& c = house.files->config;
  return {.kv = engine::kv_options(e, c, sizes, 1),
          .num_blocks = sizes.num_blocks,
          .has_tier = e.tiers.host_memory_bytes.has_value(),
          .tiers = e.tiers,
          .num_frames = sizes.num_frames,
          .scratch_frames = sizes.scratch_frames,
          .home_streaming_heads = e.heads.any_streaming() && e.prefix_cache,
          .activation_pages = sizes.activation_pages,
          .model_dim = c.model_dim,
          .deterministic = e.deterministic,
          .weights = house.weights,
          .tap = tap,
          .device_bytes = sizes.device_bytes};
}

// For the most sequences and tokens that resolve() may choose.
engine::MemorySizes gpu_memory(const engine::EngineOptions& e, const exec::SelectionTap* tap,
                               const House& house) {
  const core::ModelConfig& c = house.files->config;
  engine::ResolvedSizes most;
  most.on_gpu = true;
  most.max_num_seqs = e.max_num_seqs;
  most.context_max = std::min(e.max_model_len.value_or(c.context_max), c.context_max);
  return house.gpu->memory(*house.files, gpu_executor(e, most, tap, house));
}

engine::MemorySizes measure_memory(const engine::EngineOptions& e, const exec::SelectionTap* tap,
                                   const House& house) {
  const auto measure = [e, tap, &house](int32_t rows) {
    engine::EngineOptions fewer = e;
    fewer.max_num_batched_tokens = rows;
    fewer.max_num_seqs = std::min(e.max_num_seqs, rows);
    return house.gpu != nullptr ? gpu_memory(fewer, tap, house)
                                : cpu_memory(fewer, house, ops::op_table(house.isa));
  };
  engine::MemorySizes memory = measure(e.max_num_batched_tokens);
  memory.with_rows = measure;
  return memory;
}

// REQUIRES: there is a host tier.
exec::HostTierOptions host_tier(const engine::EngineOptions& e,
                                const engine::ResolvedSizes& sizes) {
  return {.num_homes = sizes.num_blocks,
          .num_frames = sizes.num_frames,
          .scratch_frames = sizes.scratch_frames,
          .home_streaming_heads = e.heads.any_streaming() && e.prefix_cache,
          .transfers = {.load = e.tiers.load, .save = e.tiers.save}};
}

exec::DiskTierOptions disk_tier(const engine::EngineOptions& e, const std::string& fingerprint) {
  return {.path = e.tiers.disk_path,
          .capacity_bytes = e.tiers.disk_memory_bytes,
          .fingerprint = fingerprint};
}

bool has_disk(const engine::EngineOptions& e) {
  return e.tiers.host_memory_bytes && !e.tiers.disk_path.empty();
}

std::vector<core::TokenId> all_eos(const engine::EngineOptions& e, const core::ModelConfig& c) {
  std::vector<core::TokenId> eos = c.eos;
  eos.insert(eos.end(), e.eog_tokens.begin(), e.eog_tokens.end());
  return eos;
}

model::LoadProgress load_progress(const char* what) {
  return [what](int64_t done, int64_t total) {
    print_progress(fmt::format("{}: {:.0f} %", what,
                               100.0 * static_cast<double>(done) / static_cast<double>(total)));
  };
}

base::Result<void> make_cpu_executor(const engine::EngineOptions& e, const std::string& made_with,
                                     exec::SelectionTap* tap, House* house) {
  const core::ModelConfig& c = house->files->config;
  const ops::OpTable& ops = ops::op_table(house->isa);
  const int64_t begin_us = now_us();
  ASSIGN_OR_RETURN(house->model, model::create_model(*house->stream, ops, *house->files,
                                                     model_limits(e, house->sizes.context_max),
                                                     load_progress("packing weights")));
  end_progress();
  house->ready_s = static_cast<double>(now_us() - begin_us) * 1e-6;
  LOG_INFO("{}: {} packed for {} in {:.2f} s, {} threads", house->model_type,
           base::format_bytes(house->model->weight_bytes()), device::isa_name(house->isa),
           house->ready_s, house->pool->num_threads());
  exec::CpuExecutorOptions executor{
      .kv = engine::kv_options(e, c, house->sizes, house->pool->num_threads()),
      .num_blocks = house->sizes.num_blocks,
      .eos = all_eos(e, c),
      .tap = tap};
  if (e.tiers.host_memory_bytes) {
    executor.tier = host_tier(e, house->sizes);
    executor.prefill = {.activation_pages = house->sizes.activation_pages,
                        .model_dim = c.model_dim};
    if (has_disk(e)) executor.disk = disk_tier(e, made_with);
  }
  ASSIGN_OR_RETURN(house->executor,
                   exec::CpuExecutor::create(*house->stream, ops, *house->model, c, executor));
  return {};
}

base::Result<void> make_gpu_executor(const ServingOptions& options, const engine::EngineOptions& e,
                                     const std::string& made_with, const exec::SelectionTap* tap,
                                     House* house) {
  const core::ModelConfig& c = house->files->config;
  const int64_t begin_us = now_us();
  GpuExecutorOptions executor = gpu_executor(e, house->sizes, tap, *house);
  executor.eos = all_eos(e, c);
  executor.use_graphs = !options.enforce_eager;
  executor.fill_random = options.fill_random;
  if (has_disk(e)) executor.disk = disk_tier(e, made_with);
  ASSIGN_OR_RETURN(house->executor, house->gpu->make_executor(*house->files, *house->pool, executor,
                                                              load_progress("loading weights")));
  end_progress();
  house->ready_s = static_cast<double>(now_us() - begin_us) * 1e-6;
  const engine::ResolvedSizes& sizes = house->sizes;
  LOG_INFO("{}: {} on {} in {:.2f} s; {} of its memory taken, {} planned", house->model_type,
           base::format_bytes(sizes.weights_bytes), house->gpu->name(), house->ready_s,
           base::format_bytes(house->gpu->taken_bytes()),
           base::format_bytes(sizes.weights_bytes + sizes.device_bytes + sizes.runtime_bytes));
  return {};
}

// Of what needs a GPU where none is used: one that was looked for may be there at the next start,
// when its driver is.
base::Code code_without_gpu(const ServingOptions& options) {
  return kBuiltForGpu && options.device != "cpu" ? base::Code::kIo : base::Code::kUnsupported;
}

// Takes house->gpu where there is one, and leaves it null where the CPU computes.
base::Result<void> choose_device(const ServingOptions& options, const exec::SelectionTap* tap,
                                 House* house) {
  std::shared_ptr<Gpu> gpu = std::move(house->gpu);
  house->gpu = nullptr;
  if (options.device == "cpu") return {};
  if (options.device == "auto" && !kBuiltForGpu) {
    const std::string advice = advise_unused_gpu();
    if (!advice.empty()) LOG_WARN("computing on the CPU: {}", advice);
    return {};
  }
  std::string why;
  if (gpu == nullptr) {
    base::Result<std::unique_ptr<Gpu>> found = find_gpu();
    if (found.ok()) {
      gpu = std::move(found).value();
    } else {
      why = found.error().message;
    }
  }
  if (gpu != nullptr) {
    const base::Result<void> taken = gpu->check(house->files->config);
    if (!taken.ok()) why = taken.error().message;
  }
  if (gpu != nullptr && tap != nullptr && tap->watches()) {
    why = "selections are watched on the CPU alone";
  }
  if (why.empty()) {
    house->gpu = std::move(gpu);
    LOG_INFO("computing on the GPU: {} ({})", house->gpu->name(), house->gpu->arch());
    return {};
  }
  if (options.device == "cuda") {
    return base::error(code_without_gpu(options), "--device cuda: {}", why);
  }
  LOG_INFO("computing on the CPU ({}): {}", device::isa_name(house->isa), why);
  return {};
}

// REQUIRES: the device is chosen.
base::Result<void> choose_weights(const ServingOptions& options, House* house) {
  const model::WeightsAs asked = weights_as(options.weights);
  if (house->gpu == nullptr) {
    if (asked == model::WeightsAs::kAuto) return {};
    return base::error(code_without_gpu(options),
                       "--weights {} is for a GPU: the CPU computes here, and keeps weights in the "
                       "file's types",
                       options.weights);
  }
  auto chosen =
      house->gpu->choose_weights(*house->files, asked, options.deterministic, options.max_num_seqs);
  if (!chosen.ok()) {
    return base::error(chosen.error().code, "--weights {}: {}", options.weights,
                       chosen.error().message);
  }
  house->weights = *chosen;
  return {};
}

void print_table(const std::string& table) {
  if (!base::logs_json()) return fmt::print(stderr, "{}", table);
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) LOG_INFO("{}", line);
}

// "90%": what the weights leave of that much of the available memory.
base::Result<int64_t> share_of(const std::string& text, const engine::MemorySizes& memory) {
  double share = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (failed != std::errc() || end + 1 != text.data() + text.size() ||
      !(share > 0 && share <= 100)) {
    return base::error(base::Code::kInvalidArgument,
                       "--device-memory {}: expected a share above 0% and at most 100%", text);
  }
  const auto all =
      static_cast<int64_t>(static_cast<double>(memory.available_bytes) * (share / 100));
  const int64_t left = all - memory.weights_bytes - memory.runtime_bytes;
  if (left > 0) return left;
  const int64_t taken = memory.weights_bytes + memory.runtime_bytes;
  const double least =
      std::ceil(static_cast<double>(taken) * 100 / static_cast<double>(memory.available_bytes));
  return base::error(
      base::Code::kTooLarge,
      "--device-memory {} is {} of the {} that are free, and the weights{} take {}: {}", text,
      base::format_bytes(all), base::format_bytes(memory.available_bytes),
      memory.runtime_bytes == 0 ? "" : " and CUDA", base::format_bytes(taken),
      least < 100 ? fmt::format("raise it above {}%", least)
                  : std::string("free memory, or take a smaller model"));
}

base::Result<void> make_engine(const ServingOptions& options, bool print_sizes,
                               exec::SelectionTap* tap, House* house) {
  const core::ModelConfig& c = house->files->config;
  ASSIGN_OR_RETURN(engine::EngineOptions e, engine_options(options, *house));
  e.kv_events = house->kv_events.get();
  RETURN_IF_ERROR(choose_device(options, tap, house));
  RETURN_IF_ERROR(choose_weights(options, house));
  if (e.max_num_batched_tokens == 0) {
    e.max_num_batched_tokens = house->gpu != nullptr ? kRowsOnGpu : kRowsOnCpu;
  }
  const std::string pace = set_prompt_pace(options.kv,
                                           {.num_layers = c.num_layers,
                                            .rows_max = e.max_num_batched_tokens,
                                            .on_gpu = house->gpu != nullptr},
                                           &e.tiers);
  if (!pace.empty()) LOG_INFO("vLLM's options: {}", pace);
  e.max_num_seqs = std::min(e.max_num_seqs, e.max_num_batched_tokens);
  const engine::MemorySizes memory = measure_memory(e, tap, *house);
  const bool is_share = options.device_memory.ends_with('%');
  if (is_share) {
    ASSIGN_OR_RETURN(e.device_memory_bytes, share_of(options.device_memory, memory));
  }
  base::Result<engine::ResolvedSizes> sizes = engine::resolve(e, c, memory);
  if (!sizes.ok() && is_share) {
    return base::error(sizes.error().code, "{} (--device-memory {} is {} beside the weights here)",
                       sizes.error().message, options.device_memory,
                       base::format_bytes(*e.device_memory_bytes));
  }
  ASSIGN_OR_RETURN(house->sizes, std::move(sizes));
  if (options.fill_random && house->gpu == nullptr) {
    return base::error(code_without_gpu(options),
                       "--fill random fills pages on a GPU alone, and the CPU computes here");
  }
  if (e.tiers.save_granularity == core::SaveGranularity::kStep && house->gpu == nullptr) {
    return base::error(
        code_without_gpu(options),
        "--save-granularity step packs rows on a GPU, and the CPU computes here: use "
        "--save-granularity pages");
  }
  house->budget_tokens = e.sparse.budget_tokens;
  if (print_sizes) print_table(engine::format_table(house->sizes));
  const std::string made_with =
      has_disk(e) ? lasting_fingerprint(*house, e.deterministic) : fingerprint(*house);
  RETURN_IF_ERROR(house->gpu != nullptr ? make_gpu_executor(options, e, made_with, tap, house)
                                        : make_cpu_executor(e, made_with, tap, house));
  auto engine = std::make_unique<engine::ServingEngine>(e, house->sizes, c, *house->executor,
                                                        made_with, engine::monotonic_us);
  engine->start();
  house->engine = std::move(engine);
  return {};
}

}  // namespace

std::string back_end_name(const House& house) {
  if (house.gpu != nullptr) return fmt::format("{} {}", house.gpu->name(), house.gpu->arch());
  return fmt::format("CPU {}", device::isa_name(house.isa));
}

base::Result<std::unique_ptr<load::ModelFiles>> open_model_files(const std::string& model,
                                                                 const std::string& load_format,
                                                                 uint64_t dummy_seed,
                                                                 const std::string& dummy_type) {
  const bool dummy = load_format == "dummy";
  ASSIGN_OR_RETURN(const std::string path, find_model_path(model, /*weights=*/!dummy));
  ASSIGN_OR_RETURN(
      auto files,
      load::open_model(path, dummy ? load::LoadFormat::kDummy : load::LoadFormat::kAuto, dummy_seed,
                       core::find_dtype(dummy_type).value_or(core::DType::kBF16)));
  // A snapshot's folder is named after its commit.
  const bool by_name = path != model;
  if (by_name && !path.ends_with(".gguf")) files->config.name = shown_model_name(model);
  return files;
}

base::Result<std::unique_ptr<House>> open_house(const ServingOptions& options,
                                                const Inheritance& inherited) {
  auto house = std::make_unique<House>();
  house->files = inherited.files;
  house->gpu = inherited.gpu;
  house->kv_events = inherited.kv_events;
  ASSIGN_OR_RETURN(house->isa, choose_isa(options.isa));
  if (house->files == nullptr) {
    ASSIGN_OR_RETURN(house->files, open_model_files(options.model, options.load_format,
                                                    options.dummy_seed, options.dummy_type));
  }
  house->model_type = describe_type(*house->files);
  RETURN_IF_ERROR(make_text(options, house.get()));
  house->pool = std::make_unique<base::ThreadPool>(
      options.threads > 0 ? options.threads : device::num_physical_cores());
  house->stream = std::make_unique<device::Stream>(*house->pool);
  return house;
}

base::Result<std::unique_ptr<House>> build_house(const ServingOptions& options, bool print_sizes,
                                                 exec::SelectionTap* tap,
                                                 const Inheritance& inherited) {
  ASSIGN_OR_RETURN(std::unique_ptr<House> house, open_house(options, inherited));
  RETURN_IF_ERROR(make_engine(options, print_sizes, tap, house.get()));
  return house;
}

base::Result<std::string> render_chat(const House& house, nlohmann::ordered_json context) {
  const core::TokenizerData& data = house.tokenizer->data();
  auto token = [&](core::TokenId id) {
    return id < 0 ? std::string() : data.tokens[static_cast<size_t>(id)];
  };
  context["bos_token"] = token(data.bos);
  context["eos_token"] = token(data.eos);
  return house.chat_template->render(context, static_cast<int64_t>(std::time(nullptr)));
}

}  // namespace apps
