// How pages go home: the line of saves behind store/cuda/transfers.h.
//
// A ticket's runs become parts. The engine's thread issues a part's copies on a stream of its own
// and queues it; the committing thread waits until they have arrived, lets the workers scatter what
// was staged, and ends tickets in order. Rings of fixed size hold what is on its way: when one is
// full, save() waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "device/cuda/runtime.h"
#include "store/cuda/copy_runs.h"
#include "store/cuda/place_ring.h"
#include "store/cuda/transfers.h"
#include "store/save_tickets.h"

namespace store::cuda {

class Saves {
 public:
  // REQUIRES: options.save is not kAuto. Errors: kTooLarge.
  static base::Result<std::unique_ptr<Saves>> create(const device::cuda::GpuInfo& gpu,
                                                     const TransferOptions& options);
  ~Saves();  // waits for all

  SaveTicket save(std::span<const Run> runs, const device::cuda::Event& ready);
  SaveTicket save_rows(std::span<const RowSave> rows, const device::cuda::Event& ready);
  bool is_committed(SaveTicket ticket) const { return tickets_.is_committed(ticket); }
  bool frames_free(SaveTicket ticket) const;
  base::Result<void> wait(SaveTicket ticket);
  base::Result<void> wait_frames(SaveTicket ticket);
  void take_failures(std::vector<SaveTicket>* failed) { tickets_.take_failures(failed); }
  TransferCounters counters() const;

 private:
  struct Part {
    SaveTicket ticket = 0;
    bool ends_ticket = false;
    device::cuda::Event begun;        // timed: what the copies wait for has passed
    device::cuda::Event arrived;      // timed: the copies have
    bool is_timed = false;            // both were recorded
    const PlacedRun* runs = nullptr;  // scattered by the workers, from `staged`
    int64_t num_runs = 0, bytes = 0;
    std::span<const RowSave> rows;      // or rows, likewise
    const std::byte* staged = nullptr;  // null: the copies ended in the homes
    int64_t staging_head = 0, runs_head = 0, rows_head = 0;
    base::Result<void> issued;
  };

  Saves(const device::cuda::GpuInfo& gpu, const TransferOptions& options);
  base::Result<void> init();
  bool needs_list() const;
  SaveTicket begin_ticket();
  template <typename Ready>
  void wait_until(Ready ready);

  Part& next_part(SaveTicket ticket);
  void save_directly(SaveTicket ticket, std::span<const Run> runs, base::Result<void> ready);
  void save_by_list(SaveTicket ticket, std::span<const Run> runs, base::Result<void> ready);
  PlacedRun* place_part(std::span<const Run>* runs, int64_t* skipped, Part* part);
  base::Result<void> issue_list(const PlacedRun* placed, Part* part);
  base::Result<void> issue_staged(const PlacedRun* placed, Part* part);
  void place_rows(std::span<const RowSave> rows, Part* part);
  base::Result<void> issue_rows(Part* part);
  base::Result<void> begin_copies(Part* part);
  void push_part(Part* part);

  void commit_parts();
  void finish(Part* part);
  int64_t copies_ns(const Part& part) const;
  void scatter(const Part& part);
  void scatter_rows(const Part& part);

  const device::cuda::GpuInfo gpu_;
  const TransferOptions options_;
  const int64_t part_bytes_max_;  // of runs
  device::cuda::Stream stream_;
  RunCopier copier_;
  device::cuda::PinnedBuffer staging_;  // ring
  device::cuda::Buffer packed_;         // one part, between packing and its copy
  std::vector<RowSave> rows_;           // ring
  device::cuda::PinnedBuffer lists_;    // ring of PlacedRun
  device::cuda::Buffer device_list_;    // of the part that is being issued
  base::ThreadPool workers_;

  SaveTickets tickets_;
  std::vector<device::cuda::Event> frames_;  // by ticket % size: its frames have been read
  SaveTicket last_issued_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::vector<Part> parts_;  // ring
  int64_t parts_issued_ = 0, parts_ended_ = 0;
  PlaceRing staging_ring_, lists_ring_, rows_ring_;
  bool stops_ = false;
  TransferCounters counters_;
  int64_t save_ns_ = 0;
  int64_t scattered_ns_ = 0;  // when the workers last ended; the committing thread's
  std::thread committer_;
};

}  // namespace store::cuda
