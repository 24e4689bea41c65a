#include "engine/cache_saver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/sizes.h"

namespace engine {
namespace {

// A batch takes a second of a slow disk at most, and is large beside what a sync costs. Fewer rows
// than the index's queue has room for.
constexpr int64_t kBatchBytes = 64 << 20;
constexpr int64_t kBatchBlocksMax = 1024;
constexpr int64_t kTellEveryUs = 5'000'000;

double seconds(int64_t us) {
  return static_cast<double>(us) * 1e-6;
}

}  // namespace

CacheSaver::CacheSaver(kv::BlockLedger& ledger, exec::Executor& executor, int64_t block_bytes)
    : ledger_(ledger),
      executor_(executor),
      block_bytes_(block_bytes),
      batch_blocks_(static_cast<int32_t>(std::clamp<int64_t>(
          kBatchBytes / std::max<int64_t>(block_bytes, 1), 1, kBatchBlocksMax))) {}

void CacheSaver::begin(int64_t now_us, int64_t until_us) {
  began_us_ = told_us_ = now_us;
  until_us_ = until_us;
  listed_ = false;
  more_ = true;
  running_ = ledger_.has_disk() && until_us > now_us;
}

void CacheSaver::step(int64_t now_us) {
  if (!std::exchange(listed_, true)) {
    settle();  // what failed while the server ran is no reason to stop
    ledger_.begin_save(&save_);
    if (!save_.blocks.empty()) {
      LOG_INFO("disk tier: saving what only host memory has of {} cached blocks ({})",
               save_.blocks.size(), base::format_bytes(std::ssize(save_.blocks) * block_bytes_));
    }
  }
  if (now_us >= until_us_ || !more_) return end(now_us);
  more_ = write_batch();
  if (now_us - told_us_ < kTellEveryUs) return;
  told_us_ = now_us;
  LOG_INFO("disk tier: {} of {} cached blocks are saved", save_.records.size(),
           save_.blocks.size());
}

bool CacheSaver::write_batch() {
  const bool more = ledger_.plan_save(&save_, batch_blocks_);
  ledger_.take_spills(&transfers_.spills);
  const bool ran = run();
  return settle() && ran && more;
}

// Waits for what is on its way; false: some of it failed, and the ledger knows.
bool CacheSaver::settle() {
  const bool synced = executor_.sync_disk({});
  return run() && synced;
}

bool CacheSaver::run() {
  result_.unwritten.clear();
  const bool ran = executor_.run(plan_, transfers_, &result_).ok();
  transfers_.clear();
  ledger_.end_spills(result_.unwritten);
  return ran;
}

void CacheSaver::end(int64_t now_us) {
  running_ = false;
  const size_t wanted = save_.blocks.size();
  const std::vector<uint64_t> records = ledger_.end_save(&save_);
  const bool synced = executor_.sync_disk(records);
  if (wanted == 0) return;
  const double taken_s = seconds(now_us - began_us_);
  if (!synced) {
    LOG_WARN("disk tier: the disk failed; not all of {} cached blocks are saved", wanted);
  } else if (records.size() == wanted) {
    LOG_INFO("disk tier: all {} cached blocks are saved, after {:.1f} s", wanted, taken_s);
  } else {
    LOG_WARN("disk tier: {} of {} cached blocks are saved, after {:.1f} s: {}", records.size(),
             wanted, taken_s,
             now_us >= until_us_ ? "the time of --shutdown-timeout is over"
                                 : "there are no more records");
  }
}

}  // namespace engine
