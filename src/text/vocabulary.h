// The tokens of a tokenizer: spelling to id, id to bytes, and what each single symbol is.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "core/tokenizer_data.h"
#include "text/merge_table.h"

namespace text {

// Immutable after create(). Borrows `data`, which must outlive it and not move.
class Vocabulary {
 public:
  // Errors: kInvalidArgument, kTooLarge (see Tokenizer::create).
  static base::Result<Vocabulary> create(const core::TokenizerData& data);

  core::TokenId find(std::string_view spelling) const;  // or -1
  core::TokenId find_piece(
      std::string_view bytes) const;  // a token with these bytes that is not added, or -1
  std::string_view bytes(core::TokenId id) const;
  bool is_special(core::TokenId id) const { return special_[id] != 0; }

  // Appends the symbols that `piece` starts its merges as: bytes (byte-level) or characters, with
  // byte fallback or the unknown token for what has no token.
  void append_symbols(std::string_view piece, std::vector<core::TokenId>& symbols) const;

  const MergeTable& merges() const { return merges_; }

 private:
  explicit Vocabulary(const core::TokenizerData& data) : data_(&data) {}
  base::Result<void> read_spellings();
  void read_bytes();
  void read_symbols();
  base::Result<void> read_merges();
  base::Result<void> read_scores();
  void append_fallback(std::string_view bytes, std::vector<core::TokenId>& symbols) const;

  const core::TokenizerData* data_;
  std::unordered_map<std::string_view, core::TokenId> by_spelling_;
  std::unordered_map<std::string_view, core::TokenId> by_bytes_;  // filled only for ignore_merges
  std::vector<uint8_t> special_, added_;                          // (V) flags
  std::string bytes_;                                             // of all tokens
  std::vector<uint64_t> bytes_begin_;                             // (V + 1)
  std::array<core::TokenId, 256> byte_tokens_{};  // byte-level symbols or <0xNN>; -1: none
  bool bytes_complete_ = false;                   // all 256 are there
  std::vector<core::TokenId> char_tokens_;        // by code point; not byte-level
  MergeTable merges_;
};

}  // namespace text
