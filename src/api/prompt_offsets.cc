#include "api/prompt_offsets.h"

#include <algorithm>

#include "api/json_writer.h"
#include "base/check.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace api {
namespace {

// A place in a text that only moves forward.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  int64_t characters() const { return characters_; }

  // Moves over the text of one token; where that begins, in characters.
  int64_t pass(std::string_view token) {
    for (const size_t from : {at_, end_of_space()}) {
      const std::string_view rest = text_.substr(from);
      if (!rest.starts_with(token)) {
        // A space that encoding put before a run of text?
        if (!token.starts_with(' ') || !rest.starts_with(token.substr(1))) continue;
        token.remove_prefix(1);
      }
      move_to(from);
      const int64_t begin = characters_;
      move_to(from + token.size());
      return begin;
    }
    const int64_t begin = characters_;
    pass_characters(token);
    return begin;
  }

 private:
  // The text differs from the token's: as many characters as begin in that.
  void pass_characters(std::string_view token) {
    for (const char c : token) {
      const bool begins = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
      if (begins && character_ < text_.size()) move_to(character_ + character_bytes());
    }
  }

  void move_to(size_t at) {
    at_ = std::max(at_, at);
    while (character_ < text_.size() && character_ + character_bytes() <= at_) {
      character_ += character_bytes();
      ++characters_;
    }
  }

  size_t character_bytes() const { return text::next_char(text_.substr(character_)).length; }

  // Where white space that begins here ends. Each byte is looked at once.
  size_t end_of_space() {
    space_end_ = std::max(space_end_, at_);
    space_end_ = std::min(text_.find_first_not_of(" \t\n\r\f\v", space_end_), text_.size());
    return space_end_;
  }

  std::string_view text_;
  size_t at_ = 0;
  size_t character_ = 0;  // where the character begins that at_ is in or before
  int64_t characters_ = 0;
  size_t space_end_ = 0;
};

}  // namespace

std::vector<int64_t> offsets_in_own_text(const text::Tokenizer& tokenizer, std::string_view text,
                                         std::span<const core::TokenId> tokens, bool add_special) {
  const size_t begin = add_special && tokenizer.data().add_bos ? 1 : 0;
  const size_t behind = add_special && tokenizer.data().add_eos ? 1 : 0;
  CHECK(begin + behind <= tokens.size());
  std::vector<int64_t> offsets;
  offsets.reserve(tokens.size());
  Cursor cursor(text);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool added = i < begin || i + behind >= tokens.size();
    offsets.push_back(added ? cursor.characters() : cursor.pass(tokenizer.token_bytes(tokens[i])));
  }
  return offsets;
}

std::vector<int64_t> offsets_in_decoded(const text::Tokenizer& tokenizer,
                                        std::span<const core::TokenId> tokens, bool skip_special) {
  text::Detokenizer detokenizer(tokenizer, skip_special, text::Detokenizer::Place::kFromStart);
  std::vector<int64_t> offsets;
  offsets.reserve(tokens.size());
  int64_t offset = 0;
  for (const core::TokenId token : tokens) {
    offsets.push_back(offset);
    offset += utf8_length(detokenizer.push(token));
  }
  return offsets;
}

}  // namespace api
