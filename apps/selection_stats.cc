#include "apps/selection_stats.h"

#include <fmt/format.h>

#include <algorithm>

namespace apps {

void SelectionStats::add(const StreamKey& key, std::span<const int32_t> pages) {
  if (pages.empty()) return;
  Stream& stream = streams_[key];
  const auto num_pages = static_cast<size_t>(pages.back()) + 1;
  if (stream.selected_last.size() < num_pages) stream.selected_last.resize(num_pages);
  stream.largest = std::max(stream.largest, pages.size());
  ++sums_.selections;
  pages_ += std::ssize(pages);
  if (stream.count >= kWindowMax) judge(stream, pages);
  // Selected pages move to the front of the order, together.
  ++stream.count;
  for (const int32_t page : pages) {
    stream.selected_last[static_cast<size_t>(page)] = stream.count;
  }
  std::erase_if(stream.recent, [&](int32_t page) {
    return stream.selected_last[static_cast<size_t>(page)] == stream.count;
  });
  stream.recent.insert(stream.recent.begin(), pages.begin(), pages.end());
  stream.last[static_cast<size_t>(stream.count % kWindowMax)].assign(pages.begin(), pages.end());
}

void SelectionStats::judge(const Stream& stream, std::span<const int32_t> pages) {
  ++sums_.judged;
  const auto size = static_cast<double>(pages.size());
  const int64_t now = stream.count + 1;  // number of this selection
  for (size_t i = 0; i < kWindows.size(); ++i) {
    const auto seen_within = [&](int64_t steps) {
      return std::ranges::count_if(pages, [&](int32_t page) {
        const int64_t last = stream.selected_last[static_cast<size_t>(page)];
        return last > 0 && last >= now - steps;
      });
    };
    sums_.overlap[i] += static_cast<double>(seen_within(kWindows[i])) / size;
    // Pages of the w - 1 selections before this one, and its own that are not among them. The order
    // is by recency, so they are a prefix of it.
    int64_t in_set = std::ssize(pages) - seen_within(kWindows[i] - 1);
    for (const int32_t page : stream.recent) {
      if (stream.selected_last[static_cast<size_t>(page)] < now - (kWindows[i] - 1)) break;
      ++in_set;
    }
    sums_.working_set[i] += static_cast<double>(in_set) / size;
  }
  std::vector<size_t> ranks(stream.selected_last.size(), stream.recent.size() + (size_t{1} << 40));
  for (size_t rank = 0; rank < stream.recent.size(); ++rank) {
    ranks[static_cast<size_t>(stream.recent[rank])] = rank;
  }
  for (size_t i = 0; i < kCacheSizes.size(); ++i) {
    const size_t capacity = static_cast<size_t>(kCacheSizes[i]) * stream.largest;
    const auto missed = std::ranges::count_if(
        pages, [&](int32_t page) { return ranks[static_cast<size_t>(page)] >= capacity; });
    sums_.lru_misses[i] += static_cast<double>(missed) / size;
  }
}

Locality SelectionStats::locality() const {
  Locality mean = sums_;
  const auto divide = [](auto& sums, int64_t by) {
    for (double& value : sums) value = by > 0 ? value / static_cast<double>(by) : 0.0;
  };
  divide(mean.overlap, mean.judged);
  divide(mean.working_set, mean.judged);
  divide(mean.lru_misses, mean.judged);
  if (mean.selections > 0) {
    mean.pages_mean = static_cast<double>(pages_) / static_cast<double>(mean.selections);
  }
  return mean;
}

std::string locality_table(const Locality& l) {
  std::string text = fmt::format("{} selections of {:.1f} pages, {} of them judged\n", l.selections,
                                 l.pages_mean, l.judged);
  if (l.judged == 0) {
    return text +
           fmt::format("how local they are takes {} of the same head in a row\n", kWindowMax + 1);
  }
  text += "\n| window w, steps |";
  const auto row = [&text](const char* name, const auto& values) {
    text += fmt::format("\n| {} |", name);
    for (const double value : values) text += fmt::format(" {:.3f} |", value);
  };
  for (const int32_t window : kWindows) text += fmt::format(" {} |", window);
  text += "\n|---|---|---|---|---|---|---|";
  row("share of a selection seen in the last w", l.overlap);
  row("working set of w steps, in selections", l.working_set);
  text += "\n\n| cache, selections |";
  for (const int32_t size : kCacheSizes) text += fmt::format(" {} |", size);
  text += "\n|---|---|---|---|---|---|";
  row("share missed, least recently used out first", l.lru_misses);
  return text + "\n";
}

nlohmann::ordered_json locality_json(const Locality& l) {
  nlohmann::ordered_json json = {
      {"selections", l.selections}, {"judged", l.judged}, {"pages_mean", l.pages_mean}};
  if (l.judged == 0) return json;
  json.update({{"windows", kWindows},
               {"overlap", l.overlap},
               {"working_set", l.working_set},
               {"cache_sizes", kCacheSizes},
               {"lru_misses", l.lru_misses}});
  return json;
}

}  // namespace apps
