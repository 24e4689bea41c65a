// What it costs steps that their K and V go home meanwhile (SparseServe's Figure 4, right).
//
//   save_bench [--layers N] [--tokens N] [--repeats N] [--only prefill|decode]
//
// Llama-3.1-8B's shape with random weights, one executor for each way of saving and one that saves
// nothing. Prefill: one prompt a layer at a time through layer buffers, two layers of 32k tokens a
// step, as the engine plans it. Decode: steps of 12 rows of resident sequences, whose pages fill up
// at different steps. All ways in turn within a repeat; medians of repeats on the host's clock.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "exec/cuda/cuda_executor.h"
#include "load/dummy.h"
#include "load/model_files.h"
#include "store/cuda/bench_world.h"

namespace exec::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using core::SaveMethod;
using store::cuda::bench_flag;
using store::cuda::bench_median;

constexpr int32_t kPageTokens = 32;
constexpr int32_t kStepRows = 2048;
constexpr int32_t kSeqs = 12;
constexpr int32_t kDecodePrompt = 1024, kDecodeSteps = 64;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

int32_t pages_of(int32_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

core::ModelConfig shape_8b(int32_t num_layers) {
  core::ModelConfig config{.arch = core::Arch::kLlama,
                           .name = "8B shape",
                           .num_layers = num_layers,
                           .model_dim = 4096,
                           .ffn_dim = 14336,
                           .num_q_heads = 32,
                           .num_kv_heads = 8,
                           .head_dim = 128,
                           .vocab_size = 128256,
                           .context_max = 131072};
  config.rope.theta = 500000.0;
  return config;
}

struct Way {
  const char* name;
  SaveMethod method;
  bool drops = false;
  core::SaveGranularity granularity = core::SaveGranularity::kPages;
};
constexpr Way kWays[] = {
    {"nothing is saved", SaveMethod::kExtents, true},
    {"extents", SaveMethod::kExtents},
    {"extents, rows of steps", SaveMethod::kExtents, false, core::SaveGranularity::kStep},
    {"staged", SaveMethod::kStaged},
    {"gpu-direct", SaveMethod::kGpuDirect},
    {"memcpy", SaveMethod::kMemcpy}};

struct Sizes {
  int32_t layers = 32, tokens = 32768, repeats = 3;
  bool prefill = true, decode = true;
};

struct Sequence {
  core::SeqId id{};
  int32_t slot = 0;
  std::vector<core::TokenId> tokens;
  std::vector<core::BlockId> blocks;
  std::vector<core::FrameId> frames;
  core::SamplingParams sampling{.temperature = 0.0f};
};

// One executor, its plans, and what they took.
class Runner {
 public:
  Runner(const Way& way, const Sizes& sizes, const device::cuda::GpuInfo& gpu,
         base::ThreadPool& pool, const load::ModelFiles& files)
      : way_(way), sizes_(sizes), kv_(kv_options(sizes, files.config)) {
    CudaTierOptions tier{.num_homes = num_homes(), .num_frames = num_frames()};
    tier.scratch_frames = 4 * kv_.num_kv_heads * kv_.listed_max();
    tier.transfers.load = core::LoadMethod::kUva;
    tier.transfers.save = way.method;
    tier.granularity = way.granularity;
    tier.transfers.drop_saves = way.drops;
    CudaExecutorOptions options{.kv = kv_, .num_blocks = num_homes(), .tier = tier};
    options.prefill = {.activation_pages = pages_of(sizes.tokens),
                       .model_dim = files.config.model_dim};
    auto stream = std::make_unique<device::cuda::Stream>(device::cuda::Stream::create().value());
    auto decoder = model::cuda::Decoder::create(
                       gpu, *stream, pool, files,
                       {.rows_max = kStepRows, .logits_rows_max = kv_.logits_rows_max()}, {})
                       .value();
    executor_ = CudaExecutor::create(gpu, std::move(stream), std::move(decoder), options).value();
  }

  // Milliseconds of one prompt, and of waiting for what was not at home then.
  std::pair<double, double> prefill() {
    Sequence s = sequence(0, sizes_.tokens, 0);
    s.frames = rows(0, 1);
    const int32_t columns = sizes_.layers * kv_.num_kv_heads;
    const int32_t half = (pages_of(sizes_.tokens) * kv_.num_kv_heads + columns - 1) / columns;
    const std::vector<core::FrameId> buffers = rows(1, 2 * half);
    std::vector<int32_t> activations;
    for (int32_t page = 0; page < pages_of(sizes_.tokens); ++page) activations.push_back(page);
    const int32_t layers_a_step = std::max(1, kStepRows * sizes_.layers / sizes_.tokens);
    const Clock::time_point begin = Clock::now();
    for (int32_t layer = 0; layer < sizes_.layers; layer += layers_a_step) {
      core::Segment segment = segment_of(s, 0, sizes_.tokens);
      segment.layer_begin = layer;
      segment.layer_end = std::min(sizes_.layers, layer + layers_a_step);
      segment.sample = segment.layer_end == sizes_.layers;
      if (!segment.sample) segment.logits_begin = segment.token_end;
      segment.resident = false;
      segment.layer_buffers = buffers;
      segment.activations = activations;
      plan_.segments = {segment};
      plan_.num_rows = 0;
      step();
    }
    const double ms = us_since(begin) * 1e-3;
    const Clock::time_point end = Clock::now();
    leave(s);
    return {ms, us_since(end) * 1e-3};
  }

  void begin_decode() {
    for (int32_t slot = 0; slot < kSeqs; ++slot) {
      const int32_t length = kDecodePrompt - 3 * slot, pages = decode_pages();
      Sequence& s = sequences_.emplace_back(sequence(slot, length, slot * pages));
      s.frames = rows(slot * pages, pages);
    }
    for (Sequence& s : sequences_) {
      plan_.segments = {segment_of(s, 0, static_cast<int32_t>(s.tokens.size()))};
      plan_.num_rows = static_cast<int32_t>(s.tokens.size());
      step();
      s.tokens.push_back(result_.segments[0].token);
    }
  }
  // Microseconds of each step.
  std::vector<double> decode() {
    std::vector<double> us;
    for (int i = 0; i < kDecodeSteps; ++i) {
      plan_.segments.clear();
      for (Sequence& s : sequences_) {
        const auto length = static_cast<int32_t>(s.tokens.size());
        plan_.segments.push_back(segment_of(s, length - 1, length));
        plan_.segments.back().kind = core::RowKind::kDecode;
      }
      plan_.num_rows = kSeqs;
      const Clock::time_point begin = Clock::now();
      step();
      us.push_back(us_since(begin));
      for (size_t n = 0; n < sequences_.size(); ++n)
        sequences_[n].tokens.push_back(result_.segments[n].token);
    }
    return us;
  }
  void end_decode() {
    for (const Sequence& s : sequences_) leave(s);
    sequences_.clear();
  }

  const char* name() const { return way_.name; }
  // Rows of steps are of decoding: prompts go home as they do by pages.
  bool is_of_prompts() const { return way_.granularity == core::SaveGranularity::kPages; }
  store::cuda::TransferCounters moved() const { return executor_->tier()->transfers().counters(); }

 private:
  static KvOptions kv_options(const Sizes& sizes, const core::ModelConfig& config) {
    KvOptions kv;
    kv.num_layers = config.num_layers;
    kv.num_kv_heads = config.num_kv_heads;
    kv.page = {.type = core::DType::kBF16,
               .page_tokens = kPageTokens,
               .logical_page_tokens = kPageTokens,
               .head_dim = config.head_dim};
    kv.sparse.budget_tokens = 2048;
    kv.rows_max = kStepRows;
    kv.max_num_seqs = kSeqs;
    kv.context_max = std::max(sizes.tokens, kDecodePrompt + (sizes.repeats + 2) * kDecodeSteps);
    kv.gpu = true;
    return kv;
  }
  int32_t decode_pages() const {
    return pages_of(kDecodePrompt + (sizes_.repeats + 2) * kDecodeSteps);
  }
  int32_t num_homes() const { return std::max(pages_of(sizes_.tokens), kSeqs * decode_pages()); }
  int32_t num_frames() const {
    const int32_t buffers = 2 * (pages_of(sizes_.tokens) / sizes_.layers + 1);
    return std::max(buffers + 1, kSeqs * decode_pages());
  }

  static std::vector<core::FrameId> rows(int32_t first, int32_t count) {
    std::vector<core::FrameId> made;
    for (int32_t i = 0; i < count; ++i) made.push_back(core::FrameId{first + i});
    return made;
  }
  Sequence sequence(int32_t slot, int32_t tokens, int32_t first_block) {
    Sequence s{.id = core::SeqId{++last_id_}, .slot = slot};
    for (int32_t i = 0; i < tokens; ++i)
      s.tokens.push_back(static_cast<core::TokenId>(random_() % 128000));
    const int32_t pages = std::max(pages_of(tokens), decode_pages());
    for (int32_t i = 0; i < pages; ++i) s.blocks.push_back(core::BlockId{first_block + i});
    return s;
  }
  core::Segment segment_of(const Sequence& s, int32_t begin, int32_t end) const {
    core::Segment segment;
    segment.seq = s.id;
    segment.slot = s.slot;
    segment.policy = {core::AttentionPolicy::Kind::kSparse, kv_.sparse.budget_tokens};
    segment.layer_end = sizes_.layers;
    segment.token_begin = begin;
    segment.token_end = end;
    segment.logits_begin = end - 1;
    segment.sample = true;
    segment.prompt_len = end;
    segment.tokens = s.tokens;
    segment.blocks = s.blocks;
    segment.sampling = &s.sampling;
    segment.frames = s.frames;
    segment.resident = true;
    return segment;
  }
  void step() {
    ++plan_.step;
    executor_->run(plan_, transfers_, &result_).value();
    for (const core::SegmentResult& r : result_.segments) {
      if (!r.error.empty()) fmt::print("{}: {}\n", way_.name, r.error);
    }
    transfers_.clear();
  }
  void leave(const Sequence& s) {
    plan_.clear();
    transfers_.cuts.push_back({.seq = s.id, .slot = s.slot, .keep = 0});
    step();
  }

  const Way way_;
  const Sizes sizes_;
  const KvOptions kv_;
  std::unique_ptr<CudaExecutor> executor_;
  std::mt19937 random_{1};
  uint64_t last_id_ = 0;
  std::vector<Sequence> sequences_;
  core::StepPlan plan_;
  core::TransferPlan transfers_;
  core::StepResult result_;
};

using Runners = std::vector<std::unique_ptr<Runner>>;

void bench_prefill(const Sizes& sizes, Runners& runners) {
  std::vector<std::vector<double>> ms(runners.size()), late(runners.size());
  for (int repeat = 0; repeat <= sizes.repeats; ++repeat) {
    for (size_t n = 0; n < runners.size(); ++n) {
      // There and back, so that a GPU that warms up favours nobody.
      const size_t i = repeat % 2 == 0 ? n : runners.size() - 1 - n;
      if (!runners[i]->is_of_prompts()) continue;
      const auto [took, waited] = runners[i]->prefill();
      if (repeat == 0) continue;
      ms[i].push_back(took);
      late[i].push_back(waited);
    }
  }
  fmt::print(
      "\nprefill of {} tokens, {} layers, saved by layers\n"
      "| saved by | ms | least | of nothing saved | not at home at the end, ms | GB saved | waits "
      "|\n"
      "|---|---|---|---|---|---|---|\n",
      sizes.tokens, sizes.layers);
  for (size_t i = 0; i < runners.size(); ++i) {
    if (ms[i].empty()) continue;
    const auto moved = runners[i]->moved();
    fmt::print("| {} | {:.1f} | {:.1f} | {:.3f} | {:.1f} | {:.1f} | {} |\n", runners[i]->name(),
               bench_median(ms[i]), *std::ranges::min_element(ms[i]),
               bench_median(ms[i]) / bench_median(ms[0]), bench_median(late[i]),
               static_cast<double>(moved.bytes_saved) * 1e-9, moved.save_waits);
  }
  std::fflush(stdout);
}

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(std::max<size_t>(1, values.size()));
}

void bench_decode(const Sizes& sizes, Runners& runners) {
  std::vector<std::vector<double>> means(runners.size()), medians(runners.size()),
      most(runners.size());
  for (auto& runner : runners) runner->begin_decode();
  for (int repeat = 0; repeat <= sizes.repeats; ++repeat) {
    for (size_t i = 0; i < runners.size(); ++i) {
      const std::vector<double> us = runners[i]->decode();
      if (repeat == 0) continue;
      means[i].push_back(mean(us));
      medians[i].push_back(bench_median(us));
      most[i].push_back(*std::ranges::max_element(us));
    }
  }
  for (auto& runner : runners) runner->end_decode();
  fmt::print(
      "\ndecode steps of {} rows, {} layers, us\n"
      "| saved by | mean | of nothing saved | median | longest | waits |\n"
      "|---|---|---|---|---|---|\n",
      kSeqs, sizes.layers);
  for (size_t i = 0; i < runners.size(); ++i) {
    fmt::print("| {} | {:.1f} | {:.4f} | {:.1f} | {:.1f} | {} |\n", runners[i]->name(),
               bench_median(means[i]), bench_median(means[i]) / bench_median(means[0]),
               bench_median(medians[i]), bench_median(most[i]), runners[i]->moved().save_waits);
  }
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  Sizes sizes;
  const auto number = [&](const char* flag, int32_t* to) {
    const std::string text = bench_flag(argc, argv, flag);
    if (!text.empty()) *to = std::max(1, std::atoi(text.c_str()));
  };
  number("--layers", &sizes.layers);
  number("--tokens", &sizes.tokens);
  number("--repeats", &sizes.repeats);
  const std::string only = bench_flag(argc, argv, "--only");
  sizes.prefill = only.empty() || only == "prefill";
  sizes.decode = only.empty() || only == "decode";
  const auto gpu = device::cuda::find_gpu();
  if (!gpu.ok()) {
    fmt::print(stderr, "{}\n", gpu.error().message);
    return 1;
  }
  base::ThreadPool pool(8);
  load::ModelFiles files;
  files.config = shape_8b(sizes.layers);
  const Clock::time_point begin = Clock::now();
  load::make_dummy_weights("8B shape", 1, files).value();
  Runners runners;
  for (const Way& way : kWays)
    runners.push_back(std::make_unique<Runner>(way, sizes, gpu.value(), pool, files));
  fmt::print("{}: {} executors in {:.1f} s\n", gpu.value().name, runners.size(),
             us_since(begin) * 1e-6);
  std::fflush(stdout);
  if (sizes.prefill) bench_prefill(sizes, runners);
  if (sizes.decode) bench_decode(sizes, runners);
  return 0;
}

}  // namespace
}  // namespace exec::cuda

int main(int argc, char** argv) {
  return exec::cuda::run(argc, argv);
}
