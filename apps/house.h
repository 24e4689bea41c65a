// The house, built from the bottom up: files, threads, model, KV pages, executor, engine, and the
// text around them.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/gpu.h"
#include "apps/options.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "core/kv_events.h"
#include "device/cpu.h"
#include "device/stream.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "exec/executor.h"
#include "exec/selection_tap.h"
#include "load/model_files.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace apps {

// What houses of one process may share, one after the other: files of the same model, and the GPU
// with the memory that it has pinned. Empty: a house finds its own.
struct Inheritance {
  std::shared_ptr<load::ModelFiles> files;
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<core::KvEventSink> kv_events;  // hears of cached blocks; null: nobody does
};

// Members are destroyed in reverse order: the engine's thread stops before what it uses goes.
struct House {
  std::shared_ptr<load::ModelFiles> files;
  std::string model_type;  // "llama 30 layers x 576, Q4_1": for tables
  device::Isa isa = device::Isa::kReference;
  std::unique_ptr<base::ThreadPool> pool;
  std::unique_ptr<device::Stream> stream;
  std::shared_ptr<Gpu> gpu;                            // null: the CPU computes
  model::WeightsAs weights = model::WeightsAs::kAuto;  // on a GPU: what it keeps
  std::unique_ptr<model::Model> model;                 // null on a GPU, whose executor has its own
  std::unique_ptr<text::Tokenizer> tokenizer;          // null where the model has none (dummy)
  std::unique_ptr<text::ChatTemplate>
      chat_template;  // ChatML where the model has none that can be read; null without tokenizer
  engine::ResolvedSizes sizes;
  std::shared_ptr<core::KvEventSink> kv_events;  // or null
  double ready_s = 0;                            // that weights, and on a GPU the executor, took
  int32_t budget_tokens = 0;                     // of selections; 0: all pages are attended to
  std::unique_ptr<exec::Executor> executor;
  std::unique_ptr<engine::Engine> engine;  // started
};

// Opens `model` (a path or a name of hub/), fetching it when it must. Prints progress to standard
// error.
base::Result<std::unique_ptr<load::ModelFiles>> open_model_files(const std::string& model,
                                                                 const std::string& load_format,
                                                                 uint64_t dummy_seed,
                                                                 const std::string& dummy_type);

// The files, threads and text of a house, without model and engine.
base::Result<std::unique_ptr<House>> open_house(const ServingOptions& options,
                                                const Inheritance& inherited = {});

// Everything up to a started engine. `print_sizes`: the table of weights, KV pages, workspace and
// staging, to standard error. Errors say which option to change and to what.
// `tap` (may be null) watches selections; it must outlive the house.
// What is in `inherited` comes from a house that is gone.
base::Result<std::unique_ptr<House>> build_house(const ServingOptions& options, bool print_sizes,
                                                 exec::SelectionTap* tap = nullptr,
                                                 const Inheritance& inherited = {});

// The chat template's text for `context` (messages, add_generation_prompt, ...); bos and eos tokens
// are added to it.
// "CPU avx512", "NVIDIA H200 sm_90": for tables.
std::string back_end_name(const House& house);

base::Result<std::string> render_chat(const House& house, nlohmann::ordered_json context);

}  // namespace apps
