// Where a prompt's tokens stand in the text that an answer with `echo` begins with.
//
// Offsets are in characters (code points), one a token, never decreasing and at most the text's
// length. A token that begins inside a character has that character's place. Time: linear. Thread:
// any.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "text/tokenizer.h"

namespace api {

// In a client's own string, of which `tokens` are the encoding with special tokens parsed.
// `add_special`: as they were encoded; a bos or eos that was added takes no place. What the client
// wrote counts as it stands there: special tokens with their text, white space that they swallow
// with nothing. Where the tokenizer rewrites text (canonical composition, unknown characters) the
// lengths of the tokens count instead, so what follows may be off by that difference.
std::vector<int64_t> offsets_in_own_text(const text::Tokenizer& tokenizer, std::string_view text,
                                         std::span<const core::TokenId> tokens, bool add_special);

// In the text that `tokens` decode to.
std::vector<int64_t> offsets_in_decoded(const text::Tokenizer& tokenizer,
                                        std::span<const core::TokenId> tokens, bool skip_special);

}  // namespace api
