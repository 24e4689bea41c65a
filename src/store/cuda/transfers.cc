#include "store/cuda/transfers.h"

#include <chrono>
#include <utility>

#include "base/log.h"
#include "device/cuda/status.h"
#include "store/cuda/calibration.h"
#include "store/cuda/copy_runs.h"
#include "store/cuda/gather_clock.h"
#include "store/cuda/gather_plan.h"
#include "store/cuda/saves.h"
#include "store/cuda/staged_loads.h"

namespace store::cuda {
namespace {

using core::LoadMethod;
using core::SaveMethod;

// What neither options nor a measurement decide.
int gather_blocks_of(LoadMethod method) {
  switch (method) {
    case LoadMethod::kBulk:
      return kGatherBlocks;
    case LoadMethod::kUva:
      return kGatherBlocksUva;
    default:
      return 0;
  }
}

// `us`: what measuring took, if there was any.
base::Result<Calibration> choose(const device::cuda::GpuInfo& gpu, const TransferOptions& options,
                                 int64_t* us) {
  Calibration chosen{
      .load = options.load, .gather_blocks = gather_blocks_of(options.load), .save = options.save};
  if (options.load != LoadMethod::kAuto && options.save != SaveMethod::kAuto) return chosen;
  Calibration measured;
  if (!find_calibration(options.cache_file, gpu, options.page_bytes, &measured)) {
    std::vector<CalibrationRow> rows;
    const auto begin = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(measured, calibrate(gpu, options.page_bytes, &rows));
    *us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                begin)
              .count();
    keep_calibration(options.cache_file, gpu, options.page_bytes, measured);
    std::string text;
    for (const CalibrationRow& row : rows)
      text += fmt::format("; {} {:.1f} GB/s", row.what, row.gb_per_s);
    LOG_INFO("pages of {} bytes load by {} on {} blocks and save by {}, measured in {} ms{}",
             options.page_bytes, core::name(measured.load), measured.gather_blocks,
             core::name(measured.save), *us / 1000, text);
  }
  if (options.load == LoadMethod::kAuto) {
    chosen.load = measured.load;
    chosen.gather_blocks = measured.gather_blocks;
  }
  if (options.save == SaveMethod::kAuto) chosen.save = measured.save;
  return chosen;
}

// The lists of a gather on the host, for methods of the copy engine.
class HostLists {
 public:
  base::Result<void> fetch(device::cuda::Stream& stream, const GatherArgs& args) {
    const int64_t places = args.num_places, entries = places * args.list_stride;
    if (const int64_t bytes = (2 * entries + places) * 4; lists_.size() < bytes) {
      ASSIGN_OR_RETURN(lists_, device::cuda::PinnedBuffer::allocate(bytes, "lists of misses"));
    }
    auto* homes = lists_.as<int32_t>();
    int32_t *frames = homes + entries, *counts = frames + entries;
    stream.copy(homes, args.miss_homes, entries * 4);
    stream.copy(frames, args.miss_frames, entries * 4);
    stream.copy(counts, args.num_misses, places * 4);
    RETURN_IF_ERROR(stream.synchronize());
    runs_.clear();
    for (int64_t place = 0; place < places; ++place) {
      for (int64_t i = 0; i < counts[place]; ++i) {
        const int64_t at = place * args.list_stride + i;
        runs_.push_back({args.frames + frames[at] * args.page_bytes,
                         args.homes + homes[at] * args.page_bytes, args.page_bytes});
      }
    }
    return {};
  }
  std::span<const Run> runs() const { return runs_; }

 private:
  device::cuda::PinnedBuffer lists_;
  std::vector<Run> runs_;
};

class TransfersImpl : public Transfers {
 public:
  TransfersImpl(const Calibration& chosen, int64_t calibration_us, bool is_hopper,
                std::unique_ptr<Saves> saves, std::unique_ptr<StagedLoads> staged)
      : chosen_(chosen),
        calibration_us_(calibration_us),
        is_hopper_(is_hopper),
        saves_(std::move(saves)),
        staged_(std::move(staged)) {}

  SaveTicket save(std::span<const Run> runs, const device::cuda::Event& ready) override {
    return saves_->save(runs, ready);
  }
  SaveTicket save_rows(std::span<const RowSave> rows, const device::cuda::Event& ready) override {
    return saves_->save_rows(rows, ready);
  }
  bool is_committed(SaveTicket ticket) const override { return saves_->is_committed(ticket); }
  bool frames_free(SaveTicket ticket) const override { return saves_->frames_free(ticket); }
  base::Result<void> wait(SaveTicket ticket) override { return saves_->wait(ticket); }
  base::Result<void> wait_frames(SaveTicket ticket) override { return saves_->wait_frames(ticket); }
  void take_failures(std::vector<SaveTicket>* failed) override { saves_->take_failures(failed); }

  base::Result<void> load(device::cuda::Stream& stream, std::span<const Run> runs) override {
    return copier_.copy_extents(stream.handle(), runs);
  }

  base::Result<void> gather(device::cuda::Stream& stream, const GatherArgs& given) override {
    GatherArgs args = given;
    if (args.num_blocks == 0) {
      args.num_blocks = chosen_.gather_blocks;
      args.cluster_blocks = chosen_.gather_blocks % 2 == 0 ? 2 : 1;
      args.own_sms = true;
    }
    if (args.num_places == 0 || args.list_stride == 0) return {};
    CHECK(args.arrived_bytes == nullptr || gathers_beside());
    switch (chosen_.load) {
      case LoadMethod::kBulk:
        gather_bulk(stream.handle(), args);
        return {};
      case LoadMethod::kUva:
        gather_uva(stream.handle(), args);
        return {};
      default:
        begin_gather_clock(stream.handle(), args);
        RETURN_IF_ERROR(gather_otherwise(stream, args));
        end_gather_clock(stream.handle(), args);
        return {};
    }
  }

  bool gathers_beside() const override {
    return is_hopper_ && (chosen_.load == LoadMethod::kBulk || chosen_.load == LoadMethod::kUva);
  }
  int gather_blocks() const override { return chosen_.gather_blocks; }
  LoadMethod load_method() const override { return chosen_.load; }
  SaveMethod save_method() const override { return chosen_.save; }
  TransferCounters counters() const override {
    TransferCounters counters = saves_->counters();
    counters.calibration_us = calibration_us_;
    return counters;
  }

 private:
  // By methods for comparison, which do not tell how long they took.
  base::Result<void> gather_otherwise(device::cuda::Stream& stream, const GatherArgs& args) {
    switch (chosen_.load) {
      case LoadMethod::kUvaPage:
        gather_uva_page(stream.handle(), args);
        return {};
      case LoadMethod::kStaged:
        RETURN_IF_ERROR(lists_.fetch(stream, args));
        return staged_->load(stream, lists_.runs());
      case LoadMethod::kMemcpy:
        RETURN_IF_ERROR(lists_.fetch(stream, args));
        return copier_.copy_pages(stream.handle(), lists_.runs(), args.page_bytes);
      case LoadMethod::kBatched:
        RETURN_IF_ERROR(lists_.fetch(stream, args));
        return copier_.copy_batched(stream.handle(), lists_.runs());
      default:
        return base::error(base::Code::kInternal, "no method of loading was chosen");
    }
  }

  const Calibration chosen_;
  const int64_t calibration_us_;
  const bool is_hopper_;
  RunCopier copier_;
  HostLists lists_;
  std::unique_ptr<Saves> saves_;
  std::unique_ptr<StagedLoads> staged_;  // null with another method
};

}  // namespace

base::Result<std::unique_ptr<Transfers>> Transfers::create(const device::cuda::GpuInfo& gpu,
                                                           const TransferOptions& options) {
  CHECK(options.page_bytes > 0 && options.page_bytes % 16 == 0, "{} bytes a page",
        options.page_bytes);
  if (options.load == LoadMethod::kBulk && !gpu.is_hopper()) {
    return base::error(base::Code::kUnsupported,
                       "loads by bulk copies need a GPU of compute capability 9.0, {} has {}.{}: "
                       "choose uva or auto",
                       gpu.name, gpu.major, gpu.minor);
  }
  int64_t calibration_us = 0;
  ASSIGN_OR_RETURN(const Calibration chosen, choose(gpu, options, &calibration_us));
  TransferOptions resolved = options;
  resolved.load = chosen.load;
  resolved.save = chosen.save;
  ASSIGN_OR_RETURN(auto saves, Saves::create(gpu, resolved));
  std::unique_ptr<StagedLoads> staged;
  if (chosen.load == LoadMethod::kStaged) {
    ASSIGN_OR_RETURN(staged, StagedLoads::create(options.num_workers));
  }
  return std::unique_ptr<Transfers>(std::make_unique<TransfersImpl>(
      chosen, calibration_us, gpu.is_hopper(), std::move(saves), std::move(staged)));
}

}  // namespace store::cuda
