#include "exec/cuda/column_runs.h"

namespace exec::cuda {

std::vector<ColumnRun> column_runs(const core::KvColumns& device, const core::KvColumns& homes,
                                   int32_t num_kv_heads, int32_t layer_begin, int32_t layer_end) {
  std::vector<ColumnRun> runs;
  for (int32_t layer = layer_begin; layer < layer_end; ++layer) {
    for (int32_t head = 0; head < num_kv_heads; ++head) {
      const int32_t column = device.column(layer, head), home = homes.column(layer, head);
      if (column < 0 || home < 0) continue;
      if (!runs.empty()) {
        ColumnRun& last = runs.back();
        if (last.device + last.count == column && last.home + last.count == home) {
          ++last.count;
          continue;
        }
      }
      runs.push_back({column, home, 1});
    }
  }
  return runs;
}

}  // namespace exec::cuda
