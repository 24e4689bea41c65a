// Text to token ids and back, for byte-level BPE and SentencePiece (SPM) vocabularies.
//
// Immutable after create(); encode() and decode() are safe from any thread. encode() is O(n log n) also for one 2 MB piece.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/tokenizer_data.h"

namespace text {

struct EncodeOptions {
  bool add_special = true;    // bos/eos as the model asks for
  bool parse_special = false; // special tokens written in the text become their ids (templates); else they stay text
};

class Tokenizer {
 public:
  // Errors: kUnsupported (pre-tokenizer or normaliser by name), kInvalidArgument (duplicate or missing tokens, merges out of
  // vocabulary).
  static base::Result<std::unique_ptr<Tokenizer>> create(core::TokenizerData data);
  virtual ~Tokenizer() = default;

  // REQUIRES: nothing; invalid UTF-8 is encoded byte for byte. Errors: kTooLarge never; the text's size is the caller's limit.
  virtual std::vector<core::TokenId> encode(std::string_view utf8, EncodeOptions options) const = 0;

  // The bytes of one token in running text (a space prefix included). Special tokens: their text. REQUIRES: id in range.
  virtual std::string_view token_bytes(core::TokenId id) const = 0;

  // Bytes of the ids in order; with skip_special, special tokens vanish. May end inside a character (see Detokenizer).
  std::string decode(std::span<const core::TokenId> ids, bool skip_special) const;

  bool is_special(core::TokenId id) const;
  // The id of a token spelled exactly `text` (added tokens included), or -1.
  core::TokenId find_token(std::string_view text) const;
  int32_t vocab_size() const;
  const core::TokenizerData& data() const;
};

// Reads Hugging Face's tokenizer.json over what `base` already says (bos, eos, template from tokenizer_config.json).
// Errors: kInvalidArgument naming the key, kUnsupported naming the component.
base::Result<core::TokenizerData> read_tokenizer_json(std::string_view json, core::TokenizerData base);

}  // namespace text
