// What a server that ends writes to the disk tier, so that the next one finds conversations where
// this one left them: cached blocks that only host memory has.
//
// In batches that are on the disk before the next one begins, the most recently used blocks first,
// until all have records, the records or the time run out, or the disk fails. So it ends at most a
// batch after its time, and a process killed meanwhile loses one batch. Says in the log how far it
// is. Thread: the engine's.
#pragma once

#include <cstdint>

#include "core/step.h"
#include "exec/executor.h"
#include "kv/block_ledger.h"

namespace engine {

class CacheSaver {
 public:
  // Borrows both.
  CacheSaver(kv::BlockLedger& ledger, exec::Executor& executor, int64_t block_bytes);

  // Times are those of one clock. Without a disk tier, and without time, it is over at once.
  void begin(int64_t now_us, int64_t until_us);
  // Begun, and not over.
  bool is_running() const { return running_; }
  // Writes a batch. REQUIRES: is_running(); no sequence holds a block or has a read on its way,
  // from here until it is over.
  void step(int64_t now_us);

 private:
  bool write_batch();  // true: there is more
  bool settle();
  bool run();
  void end(int64_t now_us);

  kv::BlockLedger& ledger_;
  exec::Executor& executor_;
  const int64_t block_bytes_;
  const int32_t batch_blocks_;
  bool running_ = false, listed_ = false, more_ = false;
  int64_t began_us_ = 0, until_us_ = 0, told_us_ = 0;
  kv::DiskSave save_;
  core::StepPlan plan_;  // without rows
  core::TransferPlan transfers_;
  core::StepResult result_;
};

}  // namespace engine
