// How local selections are: what a window of steps, a working set or a cache of some size would
// have saved. Pure.
//
// A STREAM is the selections of one (sequence, layer, KV head), in the order of positions. All
// figures are means over the selections of all streams that have kWindowMax predecessors, so that
// every window is judged on the same ones.
//
//   overlap[w]      share of a selection that the w selections before it hold (Figure 8 of
//                   SparseServe)
//   working_set[w]  pages of the last w selections, itself among them, in selections (its own size)
//   lru_misses[c]   share of a selection that a cache of c selections, least recently used first
//                   out, does not hold; a selection here is the stream's largest
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace apps {

inline constexpr std::array<int32_t, 6> kWindows = {1, 2, 4, 8, 12, 16};
inline constexpr int32_t kWindowMax = 16;
inline constexpr std::array<int32_t, 5> kCacheSizes = {1, 2, 3, 4, 8};  // selections

struct StreamKey {
  uint64_t sequence = 0;
  int32_t layer = 0, head = 0;
  auto operator<=>(const StreamKey&) const = default;
};

struct Locality {
  int64_t selections = 0;  // all that were seen
  int64_t judged = 0;      // those that the means are over
  double pages_mean = 0;   // of a selection
  std::array<double, kWindows.size()> overlap{};
  std::array<double, kWindows.size()> working_set{};
  std::array<double, kCacheSizes.size()> lru_misses{};
};

class SelectionStats {
 public:
  // The stream's next selection: rising pages.
  void add(const StreamKey& stream, std::span<const int32_t> pages);

  Locality locality() const;

 private:
  struct Stream {
    int64_t count = 0;                   // selections so far
    size_t largest = 0;                  // pages of one of them
    std::vector<int64_t> selected_last;  // by page: number of the selection, from 1; 0 = never
    std::vector<int32_t> recent;         // pages, last selected first
    std::array<std::vector<int32_t>, kWindowMax> last;  // ring of selections
  };

  void judge(const Stream& stream, std::span<const int32_t> pages);

  std::map<StreamKey, Stream> streams_;
  Locality sums_;
  int64_t pages_ = 0;
};

// Two tables, in the order of the figures above.
std::string locality_table(const Locality& locality);
nlohmann::ordered_json locality_json(const Locality& locality);

}  // namespace apps
