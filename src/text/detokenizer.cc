#include "text/detokenizer.h"

#include <algorithm>

#include "text/utf8.h"

namespace text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special, Place place)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      strip_spaces_left_(place == Place::kFromStart ? tokenizer.data().decode_strip_spaces : 0) {}

std::string Detokenizer::push(core::TokenId id) {
  if (skip_special_ && tokenizer_.is_special(id) &&
      std::find(shown_.begin(), shown_.end(), id) == shown_.end())
    return {};
  std::string_view bytes = tokenizer_.token_bytes(id);
  while (strip_spaces_left_ > 0 && !bytes.empty()) {
    if (bytes[0] != ' ') {
      strip_spaces_left_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    --strip_spaces_left_;
  }
  held_ += bytes;
  std::string out;
  held_.erase(0, append_replaced(out, held_, /*at_end=*/false));
  return out;
}

std::string Detokenizer::finish() {
  std::string out;
  append_replaced(out, held_, /*at_end=*/true);
  held_.clear();
  return out;
}

}  // namespace text
