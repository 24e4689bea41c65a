// Moves pages between the host tier and the device tier. One engine; the methods differ in who
// copies and in what pieces, never in the bytes that arrive.
//
//   load  memcpy      one copy command a page, in order, by the copy engine (a thread here)
//         batched     one command with the list of pages, by the copy engine
//         uva         a gather by the compute threads, inside the step (FlashH2D, SparseServe
//         3.2.1)
//         bulk, uva-page, staged: ways of a GPU; here as uva, uva and batched
//   save  memcpy      one copy command a page, by the copy engine
//         gpu-direct  the compute threads scatter pages to their homes, inside the step
//         staged      pages are collected in one contiguous copy into a staging ring; worker
//         threads
//                     scatter them to their homes beside the next step (FlashD2H, 3.2.2)
//         extents     runs of pages that are consecutive on both sides are one copy, no scatter
//   auto  what calibrate() measured as cheapest on this machine for this page size
//
// ORDER: a load of a home waits for every save of it that was issued before; saves of one home
// complete in the order they were issued. A save is COMMITTED when the bytes are in the home and
// visible to every thread (release/acquire on its ticket). The source frames of a save that is not
// committed must not be overwritten (staged, gpu-direct: free as soon as save() returns). Back
// pressure: save() waits when the staging ring or the queue is full, and counts that. Thread: the
// engine thread calls; copies run on threads of its own. Allocates nothing after create() while
// nothing fails.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "core/kv_options.h"
#include "device/stream.h"
#include "store/page_copy.h"
#include "store/save_tickets.h"

namespace store {

struct TransferOptions {
  core::LoadMethod load = core::LoadMethod::kAuto;
  core::SaveMethod save = core::SaveMethod::kAuto;
  int64_t page_bytes = 0;
  int32_t staging_pages = 1024;       // of the ring
  int32_t queue_pages_max = 1 << 16;  // saves on their way: memcpy, extents
  int32_t num_workers = 1;            // threads that scatter
  Stores stores = Stores::kPlain;     // how homes are written
  TransferFault fault;                // tests
};

struct TransferCounters {
  int64_t pages_loaded = 0, bytes_loaded = 0;
  int64_t load_us = 0;                       // that load() took, waiting for saves included
  int64_t pages_saved = 0, bytes_saved = 0;  // arrived in their homes
  int64_t save_us = 0;     // of the threads that wrote homes, beside the step (gpu-direct: inside)
  int64_t save_waits = 0;  // back pressure
  int64_t loads_failed = 0, saves_failed = 0;  // calls of load(), tickets
};

// What calibrate() measured, for logs. Costs are microseconds of a thread for each page: a method
// that runs inside the step holds all compute threads, one beside it only its own.
struct TransferCalibration {
  struct Load {
    core::LoadMethod method;
    double page_us, gb_per_s;
  };
  struct Save {
    core::SaveMethod method;
    double page_us, gb_per_s;  // until committed
  };
  std::vector<Load> loads;
  std::vector<Save> saves;
  core::LoadMethod load = core::LoadMethod::kAuto;  // the cheapest
  core::SaveMethod save = core::SaveMethod::kAuto;
};
// Medians over a few loads and saves of each method that options leave to auto; under 0.2 s.
base::Result<TransferCalibration> calibrate(device::Stream& stream, const TransferOptions& options);

class TransferEngine {
 public:
  // Calibrates what is auto. Borrows the stream. Errors: kTooLarge (the staging ring).
  static base::Result<std::unique_ptr<TransferEngine>> create(device::Stream& stream,
                                                              const TransferOptions& options);
  ~TransferEngine();  // waits for all saves
  // Bytes that create() takes and keeps.
  static int64_t staging_bytes(const TransferOptions& options);

  // Copies every page; returns when all have arrived. Errors: kIo naming the first page that
  // failed, or whose home holds nothing since its save failed; the others may have arrived.
  base::Result<void> load(std::span<const PageCopy> copies);

  // Issues the save of these pages as one ticket. Tickets rise and are committed in order.
  // REQUIRES: each home once.
  SaveTicket save(std::span<const PageCopy> copies);
  bool is_committed(SaveTicket ticket) const;
  // Waits for it. Errors: kIo (the home holds nothing).
  base::Result<void> wait(SaveTicket ticket);
  // Tickets that failed since the last call, appended.
  void take_failures(std::vector<SaveTicket>* failed);

  // For who reads or writes homes without load() and save(): afterwards no save of these is on its
  // way. Errors: kIo (one holds nothing since its save failed).
  base::Result<void> settle(std::span<std::byte* const> homes);

  core::LoadMethod load_method() const;  // never kAuto
  core::SaveMethod save_method() const;
  // What create() measured; empty where nothing was left to auto.
  const TransferCalibration& calibration() const;
  TransferCounters counters() const;

 private:
  class Impl;
  explicit TransferEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace store
