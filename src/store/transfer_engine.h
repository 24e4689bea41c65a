// Moves pages between the host tier and the device tier. One engine; the methods differ in who
// copies and in what pieces, never in the bytes that arrive.
//
//   load: memcpy   one copy command a page, in order, by the copy engine (a thread here)
//         batched  one command with the list of pages, by the copy engine
//         uva      a gather by the compute threads, inside the step (FlashH2D, SparseServe 3.2.1)
//         bulk     as uva on this back end
//   save: memcpy      one copy command a page
//         gpu-direct  the compute threads scatter pages to their homes, inside the step
//         staged      pages are collected in one contiguous copy into a staging ring; worker
//         threads
//                     scatter them to their homes beside the next step (FlashD2H, 3.2.2)
//         extents     runs of pages that are consecutive on both sides are one copy, no scatter
//   auto: what calibrate() measured as fastest on this machine for this page size.
//
// ORDER: a load of a home waits for every save of it that was issued before; saves of one home
// complete in the order they were issued. A save is COMMITTED when the bytes are in the home and
// visible to every thread (release/acquire on its ticket). The source frames of a save that is not
// committed must not be overwritten (staged: free as soon as save() returns). Back pressure: save()
// waits when the staging ring or the queue is full, and counts that. Thread: the engine thread
// calls; copies run on threads of its own. Allocates nothing after create().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "core/kv_options.h"
#include "device/stream.h"

namespace store {

struct PageCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

using SaveTicket = uint64_t;  // 0: nothing was issued

struct TransferOptions {
  core::LoadMethod load = core::LoadMethod::kAuto;
  core::SaveMethod save = core::SaveMethod::kAuto;
  int64_t page_bytes = 0;
  int32_t staging_pages = 1024;  // of the ring
  int32_t queue_pages_max = 1 << 16;
  int32_t num_workers = 1;  // threads that scatter
  // Tests: called before each page copy of a load or save; an error fails that transfer, a wait in
  // it delays the transfer.
  std::function<base::Result<void>(bool is_save, const PageCopy& copy)> fault;
};

struct TransferCounters {
  int64_t pages_loaded = 0, bytes_loaded = 0, load_us = 0;
  int64_t pages_saved = 0, bytes_saved = 0, save_us = 0;  // committed
  int64_t save_waits = 0;                                 // back pressure
  int64_t loads_failed = 0, saves_failed = 0;
};

class TransferEngine {
 public:
  // Errors: kTooLarge (the staging ring).
  static base::Result<std::unique_ptr<TransferEngine>> create(device::Stream& stream,
                                                              const TransferOptions& options);
  ~TransferEngine();  // waits for all saves

  // Copies every page; returns when all have arrived. Errors: kIo naming the first page that
  // failed; the others may have arrived.
  base::Result<void> load(std::span<const PageCopy> copies);

  // Issues the save of these pages as one ticket. Tickets rise and are committed in order.
  SaveTicket save(std::span<const PageCopy> copies);
  bool is_committed(SaveTicket ticket) const;
  // Waits for it. Errors: kIo (the home holds nothing).
  base::Result<void> wait(SaveTicket ticket);
  // Tickets that failed since the last call.
  void take_failures(std::vector<SaveTicket>* failed);

  core::LoadMethod load_method() const;  // never kAuto
  core::SaveMethod save_method() const;
  TransferCounters counters() const;

 private:
  class Impl;
  explicit TransferEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace store
