// How KV pages are chosen, kept and moved: the options that presets are made of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace core {

enum class PageStatsKind : uint8_t { kCuboidMean, kMinMax, kMeanStd, kMean };  // ops/page_stats.h
// store/transfer_engine.h, store/cuda/transfers.h
enum class LoadMethod : uint8_t { kAuto, kMemcpy, kBatched, kUva, kBulk, kUvaPage, kStaged };
enum class SaveMethod : uint8_t { kAuto, kMemcpy, kGpuDirect, kStaged, kExtents };
// What leaves the device at a time while a sequence decodes: pages when they are full, or what each
// step wrote (a GPU, KV that is not quantised).
enum class SaveGranularity : uint8_t { kPages, kStep };
enum class Admission : uint8_t { kNone, kWorkingSet };
enum class Prefill : uint8_t { kChunked, kLayer };

// As options and reports spell them: "cuboid-mean", "gpu-direct", "working-set".
std::string_view name(PageStatsKind kind);
std::string_view name(LoadMethod method);
std::string_view name(SaveMethod method);
std::string_view name(SaveGranularity granularity);
std::string_view name(Admission admission);
std::string_view name(Prefill prefill);

// Sparse attention (section SA of SparseServe, LServe). Values of the presets: apps/presets.h.
struct SparseOptions {
  int32_t budget_tokens = 0;         // 0: dense; else a multiple of P, >= 2 P
  int32_t logical_page_tokens = 32;  // P_l: divides P
  PageStatsKind page_stats = PageStatsKind::kCuboidMean;
  int32_t reuse_interval = 1;  // steps that a selection serves; 1 = no reuse
  int32_t dense_layers = 0;    // the first layers attend to everything
  int32_t sink_pages = 1;      // always selected
};

struct TierOptions {
  // Homes. Nothing: no host tier; 0: as much as is free and of use.
  std::optional<int64_t> host_memory_bytes;
  std::string disk_path;  // empty: no disk tier
  int64_t disk_memory_bytes = 0;
  LoadMethod load = LoadMethod::kAuto;
  SaveMethod save = SaveMethod::kAuto;
  SaveGranularity save_granularity = SaveGranularity::kPages;
  bool gather_overlap = true;  // on a GPU: rows attend while their missed pages come
  Admission admission = Admission::kNone;
  int32_t working_set_window = 12;  // w, steps
  Prefill prefill = Prefill::kChunked;
  int32_t chunk_tokens = 2048;    // chunked: prompt rows in a step at most
  int64_t max_inject_tokens = 0;  // layer: tokens x layers in a step; 0 = 2048 L
};

}  // namespace core
