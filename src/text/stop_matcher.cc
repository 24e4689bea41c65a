#include <utility>

#include "text/detokenizer.h"

namespace text {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop), nodes_(1) {
  for (size_t i = 0; i < stops_.size(); ++i) {
    if (stops_[i].empty()) continue;
    int32_t node = 0;
    for (char c : stops_[i]) {
      int32_t next = child(node, c);
      if (next < 0) {
        next = static_cast<int32_t>(nodes_.size());
        nodes_[node].next.emplace_back(c, next);
        nodes_.push_back({.depth = nodes_[node].depth + 1});
      }
      node = next;
    }
    nodes_[node].stop_idx = static_cast<int32_t>(i);
  }
  link_suffixes();
}

int32_t StopMatcher::child(int32_t node, char c) const {
  for (const auto& [label, next] : nodes_[node].next) {
    if (label == c) return next;
  }
  return -1;
}

// Breadth first, so that the suffix of a node is complete before the node needs it.
void StopMatcher::link_suffixes() {
  std::vector<int32_t> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t node = order[i];
    for (const auto& [c, next] : nodes_[node].next) {
      order.push_back(next);
      nodes_[next].suffix = node == 0 ? 0 : advance(nodes_[node].suffix, c);
      // Of stop strings that end at one place the longest wins; a shorter one shows only where no
      // longer one does.
      if (nodes_[next].stop_idx < 0) nodes_[next].stop_idx = nodes_[nodes_[next].suffix].stop_idx;
    }
  }
}

int32_t StopMatcher::advance(int32_t node, char c) const {
  while (true) {
    const int32_t next = child(node, c);
    if (next >= 0) return next;
    if (node == 0) return 0;
    node = nodes_[node].suffix;
  }
}

StopMatcher::Piece StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  Piece piece;
  held_.append(text);
  for (size_t i = held_.size() - text.size(); i < held_.size(); ++i) {
    state_ = advance(state_, held_[i]);
    const int32_t stop_idx = nodes_[state_].stop_idx;
    if (stop_idx < 0) continue;
    stopped_ = true;
    piece.stop = stops_[stop_idx];
    piece.text = held_.substr(0, i + 1 - (include_stop_ ? 0 : piece.stop->size()));
    held_.clear();
    return piece;
  }
  piece.text = take_certain();
  return piece;
}

std::string StopMatcher::pass(std::string_view text) {
  if (stopped_) return {};
  held_.append(text);
  for (const char c : text) state_ = advance(state_, c);
  return take_certain();
}

std::string StopMatcher::take_certain() {
  // A stop string that was passed is the start of another one or only text.
  while (state_ != 0 && nodes_[state_].next.empty()) state_ = nodes_[state_].suffix;
  const size_t certain = held_.size() - static_cast<size_t>(nodes_[state_].depth);
  std::string out = held_.substr(0, certain);
  held_.erase(0, certain);
  return out;
}

std::string StopMatcher::finish() {
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace text
