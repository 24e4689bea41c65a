#include "text/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/check.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace text {
namespace {

using core::TokenId;
using core::TokenKind;

// Every cut of an SPM token is looked up once, so the longest token bounds the time to start.
// Published ones have < 100 bytes.
constexpr size_t kSpmTokenBytesMax = 512;

TokenKind kind_of(const core::TokenizerData& data, TokenId id) {
  return data.kinds.empty() ? TokenKind::kNormal : data.kinds[id];
}

void replace_all(std::string& text, std::string_view pattern, std::string_view content) {
  for (size_t pos = text.find(pattern); pos != text.npos;
       pos = text.find(pattern, pos + content.size())) {
    text.replace(pos, pattern.size(), content);
  }
}

}  // namespace

base::Result<Vocabulary> Vocabulary::create(const core::TokenizerData& data) {
  Vocabulary out(data);
  RETURN_IF_ERROR(out.read_spellings());
  out.read_bytes();
  out.read_symbols();
  if (data.model == core::TokenizerData::Model::kBpe) {
    RETURN_IF_ERROR(out.read_merges());
  } else {
    RETURN_IF_ERROR(out.read_scores());
  }
  return out;
}

base::Result<void> Vocabulary::read_spellings() {
  const auto count = static_cast<TokenId>(data_->tokens.size());
  by_spelling_.reserve(data_->tokens.size());
  for (TokenId id = 0; id < count; ++id) {
    if (data_->tokens[id].empty()) continue;
    const auto [at, added] = by_spelling_.emplace(data_->tokens[id], id);
    if (added || kind_of(*data_, id) == TokenKind::kUnused) continue;
    return base::error(base::Code::kInvalidArgument, "tokens {} and {} are both spelled \"{}\"",
                       at->second, id, data_->tokens[id]);
  }
  special_.assign(data_->tokens.size(), 0);
  added_.assign(data_->tokens.size(), 0);
  for (const core::AddedToken& token : data_->added) {
    special_[token.id] = token.special;
    added_[token.id] = 1;
  }
  return {};
}

void Vocabulary::read_bytes() {
  const auto count = static_cast<TokenId>(data_->tokens.size());
  bytes_begin_.reserve(data_->tokens.size() + 1);
  bytes_begin_.push_back(0);
  for (TokenId id = 0; id < count; ++id) {
    const std::string& spelling = data_->tokens[id];
    const int fallback = data_->byte_fallback ? byte_of_fallback_token(spelling) : -1;
    if (added_[id]) {
      bytes_ += spelling;
    } else if (fallback >= 0) {
      bytes_.push_back(static_cast<char>(fallback));
    } else if (!data_->byte_level || !append_byte_level_bytes(bytes_, spelling)) {
      std::string text = spelling;
      for (const auto& [pattern, content] : data_->decode_replace)
        replace_all(text, pattern, content);
      bytes_ += text;
    }
    bytes_begin_.push_back(bytes_.size());
  }
  if (!data_->ignore_merges) return;
  by_bytes_.reserve(data_->tokens.size());
  for (TokenId id = 0; id < count; ++id) {
    if (!added_[id])
      by_bytes_.emplace(data_->byte_level ? bytes(id) : std::string_view(data_->tokens[id]), id);
  }
}

void Vocabulary::read_symbols() {
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    if (data_->byte_level) {
      append_utf8(spelling, byte_level_char(static_cast<uint8_t>(byte)));
    } else if (data_->byte_fallback) {
      spelling = fmt::format("<0x{:02X}>", byte);
    }
    byte_tokens_[byte] = find(spelling);
  }
  bytes_complete_ = std::find(byte_tokens_.begin(), byte_tokens_.end(), -1) == byte_tokens_.end();
  if (data_->byte_level) return;
  for (const auto& [spelling, id] : by_spelling_) {
    const Utf8Char c = next_char(spelling);
    if (c.state != Utf8Char::State::kWhole || c.length != spelling.size()) continue;
    const TokenKind kind = kind_of(*data_, id);
    if (kind != TokenKind::kNormal && kind != TokenKind::kUserDefined) continue;
    if (char_tokens_.size() <= c.code_point) char_tokens_.resize(c.code_point + 1, -1);
    char_tokens_[c.code_point] = id;
  }
}

base::Result<void> Vocabulary::read_merges() {
  merges_ = MergeTable(data_->merges.size());
  std::string joined;
  for (size_t rank = 0; rank < data_->merges.size(); ++rank) {
    const auto& [left, right] = data_->merges[rank];
    joined = left;
    joined += right;
    const TokenId left_id = find(left), right_id = find(right), id = find(joined);
    if (left_id < 0 || right_id < 0 || id < 0) {
      return base::error(base::Code::kInvalidArgument,
                         "merge {} (\"{}\" \"{}\"): \"{}\" is not a token", rank, left, right,
                         left_id < 0    ? left
                         : right_id < 0 ? right
                                        : joined);
    }
    merges_.add(left_id, right_id, {.rank = static_cast<int32_t>(rank), .id = id});
  }
  return {};
}

// SentencePiece joins the two neighbours that spell the token of the highest score. Every way to
// cut a token into two tokens is thus a merge; control, unknown, unused and byte tokens are never
// spelled by text.
base::Result<void> Vocabulary::read_scores() {
  const auto count = static_cast<TokenId>(data_->tokens.size());
  if (data_->scores.size() != data_->tokens.size()) {
    return base::error(base::Code::kInvalidArgument, "{} scores for {} tokens",
                       data_->scores.size(), count);
  }
  const auto from_text = [&](TokenId id) {
    const TokenKind kind = kind_of(*data_, id);
    return kind == TokenKind::kNormal || kind == TokenKind::kUserDefined;
  };
  std::vector<float> levels;
  for (TokenId id = 0; id < count; ++id) {
    if (std::isnan(data_->scores[id]))
      return base::error(base::Code::kInvalidArgument, "the score of token {} is not a number", id);
    if (data_->tokens[id].size() > kSpmTokenBytesMax) {
      return base::error(base::Code::kTooLarge, "token {} has {} bytes; at most {} are supported",
                         id, data_->tokens[id].size(), kSpmTokenBytesMax);
    }
    levels.push_back(data_->scores[id]);
  }
  std::sort(levels.begin(), levels.end(), std::greater<>());
  levels.erase(std::unique(levels.begin(), levels.end()), levels.end());

  std::vector<std::pair<std::pair<TokenId, TokenId>, MergeTable::Merge>> found;
  for (TokenId id = 0; id < count; ++id) {
    if (!from_text(id)) continue;
    const std::string_view spelling = data_->tokens[id];
    const auto level =
        std::lower_bound(levels.begin(), levels.end(), data_->scores[id], std::greater<>());
    const auto rank = static_cast<int32_t>(level - levels.begin());
    for (size_t cut = 1; cut < spelling.size(); ++cut) {
      if ((static_cast<uint8_t>(spelling[cut]) & 0xC0) == 0x80) continue;
      const TokenId left = find(spelling.substr(0, cut));
      if (left < 0 || !from_text(left)) continue;
      const TokenId right = find(spelling.substr(cut));
      if (right < 0 || !from_text(right)) continue;
      found.push_back({{left, right}, {.rank = rank, .id = id}});
    }
  }
  merges_ = MergeTable(found.size());
  for (const auto& [pair, merge] : found) merges_.add(pair.first, pair.second, merge);
  return {};
}

TokenId Vocabulary::find(std::string_view spelling) const {
  const auto at = by_spelling_.find(spelling);
  return at == by_spelling_.end() ? -1 : at->second;
}

TokenId Vocabulary::find_piece(std::string_view bytes) const {
  const auto at = by_bytes_.find(bytes);
  return at == by_bytes_.end() ? -1 : at->second;
}

std::string_view Vocabulary::bytes(TokenId id) const {
  CHECK(id >= 0 && static_cast<size_t>(id) + 1 < bytes_begin_.size(), "token {} of {}", id,
        bytes_begin_.size() - 1);
  return std::string_view(bytes_).substr(bytes_begin_[id], bytes_begin_[id + 1] - bytes_begin_[id]);
}

void Vocabulary::append_symbols(std::string_view piece, std::vector<TokenId>& symbols) const {
  if (data_->byte_level) {
    for (char byte : piece) {
      const TokenId id = byte_tokens_[static_cast<uint8_t>(byte)];
      if (id >= 0) {
        symbols.push_back(id);
      } else {
        append_fallback({}, symbols);
      }
    }
    return;
  }
  while (!piece.empty()) {
    const Utf8Char c = next_char(piece);
    TokenId id = -1;
    if (c.state == Utf8Char::State::kWhole && c.code_point < char_tokens_.size())
      id = char_tokens_[c.code_point];
    if (id >= 0) {
      symbols.push_back(id);
    } else {
      append_fallback(piece.substr(0, c.length), symbols);
    }
    piece.remove_prefix(c.length);
  }
}

void Vocabulary::append_fallback(std::string_view bytes, std::vector<TokenId>& symbols) const {
  if (data_->byte_fallback && bytes_complete_ && !bytes.empty()) {
    for (char byte : bytes) symbols.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
    return;
  }
  const TokenId unk = data_->unk;
  if (unk < 0 || (data_->fuse_unk && !symbols.empty() && symbols.back() == unk)) return;
  symbols.push_back(unk);
}

}  // namespace text
