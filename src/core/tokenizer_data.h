// A tokenizer as data: what load/ reads from GGUF metadata and text/ reads from tokenizer.json, and what text/ builds from.
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
  bool special = false;     // hidden from decoded text, found in prompts only where specials are parsed
  bool lstrip = false;      // swallows white space before it
  bool rstrip = false;      // and after it
  bool normalized = false;  // matched after normalisation
};

struct TokenizerData {
  enum class Model : uint8_t { kBpe, kSpm };
  Model model = Model::kBpe;
  // Byte-level BPE: GGUF's tokenizer.ggml.pre ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"), or, from tokenizer.json, the
  // patterns themselves in order.
  std::string pre;
  std::vector<std::string> tokens;                          // id -> text as stored (byte-level alphabet or U+2581 pieces)
  std::vector<TokenKind> kinds;                             // (V) or empty = all normal
  std::vector<float> scores;                                // (V) SPM only
  std::vector<std::pair<std::string, std::string>> merges;  // BPE, best first
  std::vector<AddedToken> added;
  bool ignore_merges = false;     // BPE: a piece that is a token is taken whole (llama 3)
  bool byte_fallback = false;     // unknown text becomes <0xNN> tokens (SPM)
  bool add_space_prefix = false;  // SPM
  bool add_bos = false;
  bool add_eos = false;
  bool normalize_nfc = false;     // qwen
  TokenId bos = -1, eos = -1, unk = -1;
  std::vector<TokenId> eog;       // further tokens that end a turn
  std::string chat_template;      // Jinja; empty = none
};

}  // namespace core
