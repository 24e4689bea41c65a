// How long calls take on a GPU when nothing waits between them: many of them in one graph,
// replayed.
//
// For measurements, not for the engine. Thread: the caller's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "device/cuda/runtime.h"

namespace ops::cuda {

class GraphTimer {
 public:
  // Borrows the stream. A failure stops the process.
  explicit GraphTimer(device::cuda::Stream& stream) : stream_(stream) {
    for (device::cuda::Event& event : events_) event = device::cuda::Event::create(true).value();
  }

  // Microseconds of one of `calls` calls, median of five replays: `call(i)` enqueues the i-th on
  // the stream. It runs once outside of the graph first, so that plans of new shapes are made.
  template <typename Call>
  double us(int64_t calls, const Call& call) {
    constexpr int kRepeats = 5;
    call(int64_t{0});
    auto graph = device::cuda::Graph::capture(stream_, [&] {
      for (int64_t i = 0; i < calls; ++i) call(i);
    });
    graph.value().launch(stream_);
    std::vector<double> us;
    for (int i = 0; i < kRepeats; ++i) {
      stream_.record(events_[0]);
      graph.value().launch(stream_);
      stream_.record(events_[1]);
      stream_.synchronize().value();
      us.push_back(events_[1].us_since(events_[0]) / static_cast<double>(calls));
    }
    std::ranges::sort(us);
    return us[us.size() / 2];
  }

 private:
  device::cuda::Stream& stream_;
  device::cuda::Event events_[2];
};

// The numbers of rows that a command line names, else the usual ones.
template <typename Usual>
std::vector<int64_t> rows_asked_for(int argc, char** argv, const Usual& usual) {
  std::vector<int64_t> rows;
  for (int i = 1; i < argc; ++i) rows.push_back(std::atoll(argv[i]));
  if (rows.empty()) rows.assign(std::begin(usual), std::end(usual));
  return rows;
}

}  // namespace ops::cuda
