#include "exec/page_saver.h"

#include <algorithm>

namespace exec {

void PageSaver::poll() {
  failed_.clear();
  engine_.take_failures(&failed_);
  ledger_.poll();
}

SaveQueue::State PageSaver::state(SaveTicket ticket) {
  if (std::ranges::find(failed_, ticket) != failed_.end()) return State::kFailed;
  // A ticket that failed after take_failures() is not committed: the next poll finds it.
  return engine_.is_committed(ticket) ? State::kCommitted : State::kPending;
}

}  // namespace exec
