#include "text/call_parser.h"

#include <algorithm>
#include <utility>

namespace text {

int MarkerMatcher::step(char c, std::string& text) {
  held_ += c;
  while (!held_.empty()) {
    for (size_t i = 0; i < markers_.size(); ++i) {
      if (!markers_[i].starts_with(held_)) continue;
      if (markers_[i].size() > held_.size()) return -1;
      held_.clear();
      return static_cast<int>(i);
    }
    text += held_.front();
    held_.erase(0, 1);
  }
  return -1;
}

void PieceWriter::content(std::string_view text, OutputPiece& out) {
  while (!text.empty()) {
    size_t length = 0;
    while (length < text.size() && is_space(text[length])) ++length;
    spaces_ += text.substr(0, length);
    text.remove_prefix(length);
    length = 0;
    while (length < text.size() && !is_space(text[length])) ++length;
    if (length == 0) break;
    out.content += std::exchange(spaces_, {});
    out.content += text.substr(0, length);
    behind_call_ = false;
    text.remove_prefix(length);
  }
}

void PieceWriter::begin_call(std::string name, OutputPiece& out) {
  spaces_.clear();
  out.calls.push_back({.index = begun_++, .name = std::move(name)});
  open_ = true;
  arguments_.clear();
}

void PieceWriter::arguments(std::string_view json, OutputPiece& out) {
  if (json.empty()) return;
  const int32_t index = begun_ - 1;
  if (out.calls.empty() || out.calls.back().index != index) out.calls.push_back({.index = index});
  out.calls.back().arguments += json;
  arguments_ += json;
}

void PieceWriter::end_call(bool whole) {
  if (!std::exchange(open_, false)) return;
  if (!whole) {
    all_json_ = false;  // and it counts as never ended
    return;
  }
  ++ended_;
  behind_call_ = true;
  const auto parsed = nlohmann::json::parse(std::exchange(arguments_, {}), nullptr,
                                            /*allow_exceptions=*/false);
  if (!parsed.is_object()) all_json_ = false;
}

void PieceWriter::finish(OutputPiece& out) {
  end_call(false);
  if (!behind_call_) out.content += spaces_;
  spaces_.clear();
}

}  // namespace text
