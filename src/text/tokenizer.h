// Text to token ids and back, for byte-level BPE and SentencePiece (SPM) vocabularies.
//
// Encoding: added tokens are cut out first, then text is rewritten (normalised, prefixed), cut into
// pieces by patterns, and each piece is merged. SPM is a merge too: a pair's rank comes from the
// score of the token that it spells. Immutable after create(); encode() and decode() are safe from
// any thread. encode() is O(n log n) also for one 2 MB piece.
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
  bool add_special = true;     // bos/eos as the model asks for
  bool parse_special = false;  // special tokens written in the text become their ids (templates);
                               // else they stay text
};

class Tokenizer {
 public:
  // Errors: kUnsupported (pre-tokenizer, pattern or combination by name), kInvalidArgument
  // (duplicate or missing tokens, merges out of vocabulary, ids out of range), kTooLarge (an SPM
  // token of more than 512 bytes).
  static base::Result<std::unique_ptr<Tokenizer>> create(core::TokenizerData data);
  ~Tokenizer();

  // Never fails: bytes that are not UTF-8 become the tokens of those bytes where the vocabulary has
  // them (byte-level, or with byte fallback), else the unknown token. Text that the vocabulary
  // cannot spell at all is left out. The size of the text is the caller's limit. REQUIRES:
  // utf8.size() < 2^31.
  std::vector<core::TokenId> encode(std::string_view utf8, EncodeOptions options) const;

  // The bytes of one token in running text (a space prefix included). Special tokens: their text.
  // REQUIRES: id in range.
  std::string_view token_bytes(core::TokenId id) const;

  // Bytes of the ids in order; with skip_special, special tokens vanish. The space that encode()
  // puts before text is dropped again. May end inside a character (see Detokenizer). REQUIRES: ids
  // in range.
  std::string decode(std::span<const core::TokenId> ids, bool skip_special) const;

  // Control and unknown tokens, and added tokens marked special. REQUIRES: id in range.
  bool is_special(core::TokenId id) const;
  // The id of a token spelled exactly `text` (added tokens as themselves, others as the vocabulary
  // spells them), or -1.
  core::TokenId find_token(std::string_view text) const;
  int32_t vocab_size() const;
  const core::TokenizerData& data() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

// Reads Hugging Face's tokenizer.json over what `base` already says (bos, eos, template from
// tokenizer_config.json). What only GGUF knows (pre, kinds, scores) is replaced. Errors:
// kInvalidArgument naming the key, kUnsupported naming the component.
base::Result<core::TokenizerData> read_tokenizer_json(std::string_view json,
                                                      core::TokenizerData base);

}  // namespace text
