// What the parsers of call formats share. Private to output_parser.cc and the formats.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"

namespace text {

inline bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// Finds markers in text that comes a byte at a time. Holds back only what may be the beginning of
// one. REQUIRES: no marker begins another.
class MarkerMatcher {
 public:
  explicit MarkerMatcher(std::vector<std::string_view> markers) : markers_(std::move(markers)) {}
  // Takes a byte. Returns the marker that it completes, or -1. `text` gets what is sure to be none.
  int step(char c, std::string& text);
  // What is held back.
  std::string take() { return std::exchange(held_, {}); }
  bool holds() const { return !held_.empty(); }

 private:
  std::vector<std::string_view> markers_;
  std::string held_;
};

// Reads one marker where only that may stand.
class ExactMarker {
 public:
  enum class Step : uint8_t { kMore, kFound, kOther };
  explicit ExactMarker(std::string_view marker) : marker_(marker) {}
  Step step(char c) {
    if (c != marker_[matched_]) return Step::kOther;
    return ++matched_ == marker_.size() ? Step::kFound : Step::kMore;
  }
  void restart() { matched_ = 0; }

 private:
  std::string_view marker_;
  size_t matched_ = 0;
};

// Puts pieces out: content without the white space around calls, calls with their numbers.
class PieceWriter {
 public:
  void content(std::string_view text, OutputPiece& out);
  void begin_call(std::string name, OutputPiece& out);
  void arguments(std::string_view json, OutputPiece& out);
  // `whole`: its text was as it should be.
  void end_call(bool whole);
  void finish(OutputPiece& out);

  int32_t begun() const { return begun_; }
  int32_t ended() const { return ended_; }
  bool complete() const { return ended_ == begun_ && all_json_; }

 private:
  std::string spaces_;  // at the end of the content so far
  bool behind_call_ = false;
  bool open_ = false;
  int32_t begun_ = 0;
  int32_t ended_ = 0;
  bool all_json_ = true;
  std::string arguments_;  // of the open call
};

class CallParser {
 public:
  virtual ~CallParser() = default;
  virtual void step(char c, OutputPiece& out) = 0;
  virtual void finish(OutputPiece& out) = 0;
  const PieceWriter& writer() const { return writer_; }

 protected:
  PieceWriter writer_;
};

std::unique_ptr<CallParser> make_hermes_parser();
std::unique_ptr<CallParser> make_qwen3_coder_parser(const nlohmann::ordered_json* tools);
std::unique_ptr<CallParser> make_llama3_json_parser(const nlohmann::ordered_json* tools);
std::unique_ptr<CallParser> make_mistral_parser();

}  // namespace text
