// A tokenizer as data: what load/ reads from GGUF metadata and text/ reads from tokenizer.json, and
// what text/ builds from.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/ids.h"

namespace core {

enum class TokenKind : uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct AddedToken {
  TokenId id = 0;
  std::string text;
  bool special =
      false;            // hidden from decoded text, found in prompts only where specials are parsed
  bool lstrip = false;  // swallows white space before it
  bool rstrip = false;  // and after it
  bool normalized = false;   // matched after normalisation
  bool single_word = false;  // not inside a word
};

// A step that rewrites text. A pattern is a regular expression or, with regex off, a literal.
struct RewriteStep {
  enum class Kind : uint8_t {
    kNfc,             // canonical composition
    kReplace,         // `content` for every match of `pattern`
    kPrepend,         // `content` before text that is not empty
    kPrependMissing,  // the same, unless the text starts with it
    kPrependFirst,    // as kPrependMissing, only at the very start of what is encoded
  };
  Kind kind = Kind::kNfc;
  std::string pattern;
  std::string content;
  bool regex = false;
};

// A step that cuts text into pieces at the matches of a pattern; merges never cross pieces.
struct SplitStep {
  enum class Matches : uint8_t {
    kIsolated,
    kRemoved,
    kMergedWithPrevious,
    kMergedWithNext,
    kContiguous
  };
  std::string pattern;
  bool regex = true;
  bool invert = false;  // what lies between the matches counts as the matches
  Matches matches = Matches::kIsolated;
};

struct TokenizerData {
  enum class Model : uint8_t { kBpe, kSpm };
  Model model = Model::kBpe;
  // GGUF's tokenizer.ggml.pre ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "default"), which
  // stands for what the fields of the next group say; empty where tokenizer.json filled them. SPM
  // needs neither.
  std::string pre;
  bool byte_level = true;              // BPE: tokens are spelled in the byte-level alphabet
  std::vector<RewriteStep> normalize;  // before tokens marked `normalized` are found
  std::vector<RewriteStep> prepare;    // after all added tokens are found
  std::vector<SplitStep> split;        // after `prepare`
  std::vector<std::pair<std::string, std::string>>
      decode_replace;  // in the spelling of tokens, in order; SPM: U+2581 -> " "
  int32_t decode_strip_spaces =
      0;  // leading spaces dropped from decoded text, at most; SPM: 1 with add_space_prefix

  std::vector<std::string> tokens;  // id -> text as stored (byte-level alphabet or U+2581 pieces)
  std::vector<TokenKind> kinds;     // (V) or empty = all normal
  std::vector<float> scores;        // (V) SPM only
  std::vector<std::pair<std::string, std::string>> merges;  // BPE, best first
  std::vector<AddedToken> added;
  bool ignore_merges = false;     // BPE: a piece that is a token is taken whole (llama 3)
  bool byte_fallback = false;     // unknown text becomes <0xNN> tokens (SPM)
  bool fuse_unk = false;          // a run of unknown characters becomes one `unk`
  bool add_space_prefix = false;  // SPM
  bool add_bos = false;
  bool add_eos = false;
  TokenId bos = -1, eos = -1, unk = -1;
  std::vector<TokenId> eog;   // further tokens that end a turn
  std::string chat_template;  // Jinja; empty = none
};

}  // namespace core
