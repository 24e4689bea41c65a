#include "text/tokenizer.h"

#include <utility>

#include "base/check.h"
#include "text/added_tokens.h"
#include "text/merge_table.h"
#include "text/pre_tokenizer.h"
#include "text/rewriter.h"
#include "text/vocabulary.h"

namespace text {
namespace {

using core::TokenId;
using core::TokenizerData;
using core::TokenKind;
using Rewrite = core::RewriteStep::Kind;

constexpr std::string_view kSpaceSymbol = "\u2581";

base::Result<void> check_data(const TokenizerData& data) {
  const auto count = static_cast<int64_t>(data.tokens.size());
  if (count == 0 || count > INT32_MAX)
    return base::error(base::Code::kInvalidArgument, "a vocabulary of {} tokens", count);
  if (!data.kinds.empty() && data.kinds.size() != data.tokens.size()) {
    return base::error(base::Code::kInvalidArgument, "{} token kinds for {} tokens",
                       data.kinds.size(), count);
  }
  const auto check = [&](const char* what, TokenId id, TokenId min) -> base::Result<void> {
    if (id >= min && id < count) return {};
    return base::error(base::Code::kInvalidArgument, "{} {} is outside of the vocabulary of {}",
                       what, id, count);
  };
  RETURN_IF_ERROR(check("bos token", data.bos, -1));
  RETURN_IF_ERROR(check("eos token", data.eos, -1));
  RETURN_IF_ERROR(check("unknown token", data.unk, -1));
  for (TokenId id : data.eog) RETURN_IF_ERROR(check("end token", id, 0));
  for (const core::AddedToken& token : data.added)
    RETURN_IF_ERROR(check("added token", token.id, 0));
  for (const auto& [pattern, content] : data.decode_replace) {
    if (pattern.empty())
      return base::error(base::Code::kInvalidArgument, "a Replace decoder has an empty pattern");
  }
  if (data.add_bos) RETURN_IF_ERROR(check("bos token (add_bos is set)", data.bos, 0));
  if (data.add_eos) RETURN_IF_ERROR(check("eos token (add_eos is set)", data.eos, 0));
  return {};
}

// GGUF says by kinds which tokens are matched before everything else.
void add_tokens_of_kinds(TokenizerData& data) {
  std::vector<bool> listed(data.tokens.size());
  for (const core::AddedToken& token : data.added) listed[token.id] = true;
  for (size_t id = 0; id < data.kinds.size(); ++id) {
    const TokenKind kind = data.kinds[id];
    const bool special = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if (listed[id] || (!special && kind != TokenKind::kUserDefined)) continue;
    data.added.push_back(
        {.id = static_cast<TokenId>(id), .text = data.tokens[id], .special = special});
  }
}

// SentencePiece marks spaces by U+2581 and, with add_space_prefix, puts one before every run of
// text.
void expand_spm(TokenizerData& data) {
  data.byte_level = false;
  data.byte_fallback = true;
  data.fuse_unk = true;
  data.normalize.clear();
  const std::string space(kSpaceSymbol);
  if (data.add_space_prefix) data.normalize.push_back({.kind = Rewrite::kPrepend, .content = " "});
  data.normalize.push_back({.kind = Rewrite::kReplace, .pattern = " ", .content = space});
  data.prepare.clear();
  data.split.clear();
  data.decode_replace = {{space, " "}};
  data.decode_strip_spaces = data.add_space_prefix ? 1 : 0;
}

// Without a pre-tokenizer all text is one piece, and megabytes go through one heap. Where no token
// holds U+2581 after another character, no merge crosses such a place, and text may be cut there:
// the ids are the same.
void cut_before_spaces(TokenizerData& data) {
  if (data.byte_level || data.ignore_merges || !data.split.empty()) return;
  bool is_token = false;
  for (const std::string& token : data.tokens) {
    is_token |= token == kSpaceSymbol;
    for (size_t pos = token.find(kSpaceSymbol, 1); pos != token.npos;
         pos = token.find(kSpaceSymbol, pos + 1)) {
      if (!std::string_view(token).substr(0, pos).ends_with(kSpaceSymbol)) return;
    }
  }
  if (is_token) data.split.push_back({.pattern = "\\x{2581}*[^\\x{2581}]+|\\x{2581}+"});
}

std::vector<core::AddedToken> select(const std::vector<core::AddedToken>& tokens, bool normalized) {
  std::vector<core::AddedToken> out;
  for (const core::AddedToken& token : tokens) {
    if (token.normalized == normalized) out.push_back(token);
  }
  return out;
}

std::vector<core::AddedToken> rewritten(std::vector<core::AddedToken> tokens,
                                        const Rewriter& rewriter) {
  for (core::AddedToken& token : tokens) token.text = rewriter.apply(token.text, /*at_start=*/true);
  return tokens;
}

struct EncodeScratch {
  std::vector<std::string_view> pieces;
  std::vector<TokenId> symbols;
  MergeScratch merge;
};

}  // namespace

// The vocabulary borrows from `data`, which therefore has a place of its own.
struct Tokenizer::Parts {
  std::unique_ptr<const TokenizerData> data;
  Vocabulary vocabulary;
  Rewriter normalize, prepare;
  PreTokenizer pre_tokenizer;
  AddedTokenMatcher raw_tokens, normalized_tokens;

  void encode_text(std::string_view text, bool at_start, EncodeScratch& scratch,
                   std::vector<TokenId>& out) const;
  void encode_normalized(std::string_view text, bool at_start, bool parse_special,
                         EncodeScratch& scratch, std::vector<TokenId>& out) const;
};

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

base::Result<std::unique_ptr<Tokenizer>> Tokenizer::create(TokenizerData data) {
  RETURN_IF_ERROR(check_data(data));
  if (data.model == TokenizerData::Model::kSpm) {
    expand_spm(data);
  } else if (!data.pre.empty()) {
    RETURN_IF_ERROR(expand_named_pre_tokenizer(data));
    // Some byte-level vocabularies lack bytes that never occur in text (SmolLM2: 0x04). GGUF names
    // an unknown token all the same, often a control token: text must not become one, so such bytes
    // are left out.
    data.unk = -1;
  }
  add_tokens_of_kinds(data);
  cut_before_spaces(data);
  ASSIGN_OR_RETURN(Rewriter normalize, Rewriter::create(data.normalize));
  ASSIGN_OR_RETURN(Rewriter prepare, Rewriter::create(data.prepare));
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::create(data.split));
  AddedTokenMatcher raw(select(data.added, false));
  AddedTokenMatcher normalized(rewritten(select(data.added, true), normalize));
  auto kept = std::make_unique<TokenizerData>(std::move(data));
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::create(*kept));
  auto parts = std::unique_ptr<Parts>(
      new Parts{std::move(kept), std::move(vocabulary), std::move(normalize), std::move(prepare),
                std::move(pre_tokenizer), std::move(raw), std::move(normalized)});
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

// Text between added tokens, normalised: pieces, then merges.
void Tokenizer::Parts::encode_text(std::string_view text, bool at_start, EncodeScratch& scratch,
                                   std::vector<TokenId>& out) const {
  std::string prepared;
  if (!prepare.empty()) {
    prepared = prepare.apply(text, at_start);
    text = prepared;
  }
  scratch.pieces.clear();
  pre_tokenizer.split(text, scratch.pieces);
  for (std::string_view piece : scratch.pieces) {
    if (data->ignore_merges) {
      if (const TokenId whole = vocabulary.find_piece(piece); whole >= 0) {
        out.push_back(whole);
        continue;
      }
    }
    scratch.symbols.clear();
    vocabulary.append_symbols(piece, scratch.symbols);
    merge_symbols(vocabulary.merges(), scratch.symbols, scratch.merge);
    out.insert(out.end(), scratch.symbols.begin(), scratch.symbols.end());
  }
}

void Tokenizer::Parts::encode_normalized(std::string_view text, bool at_start, bool parse_special,
                                         EncodeScratch& scratch, std::vector<TokenId>& out) const {
  std::string rewritten_text;
  if (!normalize.empty()) {
    rewritten_text = normalize.apply(text, at_start);
    text = rewritten_text;
  }
  std::vector<AddedTokenMatcher::Part> parts;
  normalized_tokens.split(text, parse_special, parts);
  for (const auto& part : parts) {
    if (part.id >= 0) {
      out.push_back(part.id);
    } else {
      encode_text(part.text, at_start && part.text.data() == text.data(), scratch, out);
    }
  }
}

std::vector<TokenId> Tokenizer::encode(std::string_view utf8, EncodeOptions options) const {
  CHECK(utf8.size() <= size_t{INT32_MAX}, "{} bytes of text", utf8.size());
  const TokenizerData& data = *parts_->data;
  std::vector<TokenId> out;
  if (options.add_special && data.add_bos) out.push_back(data.bos);
  EncodeScratch scratch;
  std::vector<AddedTokenMatcher::Part> parts;
  parts_->raw_tokens.split(utf8, options.parse_special, parts);
  for (const auto& part : parts) {
    if (part.id >= 0) {
      out.push_back(part.id);
    } else {
      parts_->encode_normalized(part.text, part.text.data() == utf8.data(), options.parse_special,
                                scratch, out);
    }
  }
  if (options.add_special && data.add_eos) out.push_back(data.eos);
  return out;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  return parts_->vocabulary.bytes(id);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string out;
  for (TokenId id : ids) {
    if (!skip_special || !is_special(id)) out += token_bytes(id);
  }
  const auto strip_max = static_cast<size_t>(parts_->data->decode_strip_spaces);
  size_t spaces = 0;
  while (spaces < strip_max && spaces < out.size() && out[spaces] == ' ') ++spaces;
  return out.erase(0, spaces);
}

bool Tokenizer::is_special(TokenId id) const {
  CHECK(id >= 0 && id < vocab_size(), "token {} of {}", id, vocab_size());
  return parts_->vocabulary.is_special(id);
}

TokenId Tokenizer::find_token(std::string_view text) const {
  return parts_->vocabulary.find(text);
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(parts_->data->tokens.size());
}

const TokenizerData& Tokenizer::data() const {
  return *parts_->data;
}

}  // namespace text
