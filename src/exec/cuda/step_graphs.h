// Decode steps as graphs: a step of each kind runs as launches once, is then captured, and from
// there on replayed. Where a graph cannot be had, as device memory may be short of what CUDA takes
// for it, steps of that kind stay launches: slower, with the same bits.
//
// A template over device::cuda::Graph, so that a test without a GPU can hold it to that. Thread:
// the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "base/log.h"
#include "base/result.h"

namespace exec::cuda {

// The launches of a padded pass: rows, whether any select, whether any list all their pages in
// dense layers, whether any fill a page.
using GraphKey = std::tuple<int32_t, bool, bool, bool>;

template <typename Graph>
class StepGraphs {
 public:
  // Runs the step once, by `enqueue` or by a graph of it; true: replayed. Errors: enqueue's alone.
  // REQUIRES: enqueue leaves the host as it found it, for it runs once more where it ran into a
  // capture that failed, of which nothing has reached the stream.
  template <typename Stream>
  base::Result<bool> run(Stream& stream, const GraphKey& key,
                         const std::function<base::Result<void>()>& enqueue) {
    Step& step = steps_[key];
    if (std::exchange(step.is_warm, true) && !step.stays_eager) {
      const base::Result<void> replayed = replay(stream, &step, enqueue);
      if (replayed.ok()) return true;
      step.graph = Graph();
      step.stays_eager = true;
      warn(std::get<0>(key), replayed.error());
    }
    RETURN_IF_ERROR(enqueue());
    return false;
  }

  // What the launches read has moved. Kinds without a graph stay without.
  void forget() {
    std::erase_if(steps_, [](const auto& step) { return !step.second.stays_eager; });
  }

 private:
  struct Step {
    bool is_warm = false;  // ran once, so that every product has its plan
    bool stays_eager = false;
    Graph graph;
  };

  template <typename Stream>
  base::Result<void> replay(Stream& stream, Step* step,
                            const std::function<base::Result<void>()>& enqueue) {
    if (step->graph.empty()) {
      base::Result<void> enqueued;
      ASSIGN_OR_RETURN(Graph graph, Graph::capture(stream, [&] { enqueued = enqueue(); }));
      RETURN_IF_ERROR(enqueued);  // a graph of half a step is never replayed
      step->graph = std::move(graph);
    }
    return step->graph.try_launch(stream);
  }

  void warn(int32_t rows, const base::Error& why) {
    if (std::exchange(has_warned_, true)) return;
    LOG_WARN(
        "decode steps of {} rows are launched kernel by kernel from now on, and so is what else "
        "finds no room for a graph: {}; a smaller --device-memory leaves some",
        rows, why.message);
  }

  std::map<GraphKey, Step> steps_;
  bool has_warned_ = false;
};

}  // namespace exec::cuda
