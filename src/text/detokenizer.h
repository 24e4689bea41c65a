// Text of a growing sequence: whole characters only, and stop strings found across token borders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "text/tokenizer.h"

namespace text {

// Turns tokens into text a piece at a time. Bytes that may be the start of a character are held
// back until the character is whole; bytes that can never become one come out as U+FFFD at once,
// each maximal bad run as Python's "replace" does it. The concatenation of all pieces equals the
// replacement-decoding of all bytes. Borrows the tokenizer. Thread: one.
class Detokenizer {
 public:
  // Tokens that continue a prompt keep their leading space ("... is" + " blue"). A text decoded
  // from its start drops the space that encoding put there, as Tokenizer::decode does.
  enum class Place : uint8_t { kContinues, kFromStart };
  Detokenizer(const Tokenizer& tokenizer, bool skip_special, Place place = Place::kContinues);
  // Special tokens to write all the same: those that a parser behind looks for.
  void show(std::vector<core::TokenId> tokens) { shown_ = std::move(tokens); }
  // Text that became certain with this token; may be empty. REQUIRES: id in range.
  std::string push(core::TokenId id);
  // What is still held back, as U+FFFD; call once at the end.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<core::TokenId> shown_;
  int32_t strip_spaces_left_;
  std::string held_;
};

// Finds the first of several stop strings in streamed text. Text that may be the beginning of a
// stop string is held back: the longest end of the text so far that is the start of a stop string,
// and nothing more. The first stop string is the one that is complete first; of those that end
// together, the longest. How the text is cut into pushes changes nothing. An Aho-Corasick
// automaton: one step a byte. Empty stop strings are ignored. Thread: one.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops, bool include_stop = false);
  struct Piece {
    std::string text;                 // may be sent now
    std::optional<std::string> stop;  // the stop string that was met; later pushes give nothing
  };
  Piece push(std::string_view text);
  // The next text, where a stop string may begin but none ends: one that is complete in it is text
  // like any other. Returns what may be sent now.
  std::string pass(std::string_view text);
  // What is still held back: no stop string came of it.
  std::string finish();

 private:
  struct Node {
    std::vector<std::pair<char, int32_t>> next;
    int32_t suffix = 0;     // the node of the longest proper end of this node's text
    int32_t depth = 0;      // bytes from the root
    int32_t stop_idx = -1;  // the longest stop string that ends here
  };
  int32_t child(int32_t node, char c) const;  // or -1
  int32_t advance(int32_t node, char c) const;
  void link_suffixes();
  std::string take_certain();

  std::vector<std::string> stops_;
  bool include_stop_;
  std::vector<Node> nodes_;
  int32_t state_ = 0;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace text
