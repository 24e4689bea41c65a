#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "load/gguf_model.h"
#include "load/printable.h"

namespace load {
namespace {

using base::Code;
using base::Result;
using core::TokenId;
using core::TokenizerData;
using core::TokenKind;

// Other names of the pre-tokenizer "llama-bpe".
constexpr std::string_view kLlama3Names[] = {"llama3",  "llama-v3", "falcon3", "falcon-h1",
                                             "pixtral", "midm-2.0", "lfm2"};

// Control tokens that end a turn in published chat models, whether or not the metadata says so.
constexpr std::string_view kEndOfTurn[] = {"<|eot_id|>",     "<|eom_id|>",    "<|im_end|>",
                                           "<|end|>",        "<end_of_turn>", "<|endoftext|>",
                                           "<|end_of_text|>"};

Result<void> read_tokens(const GgufFile& gguf, int32_t vocab_size, TokenizerData& data) {
  ASSIGN_OR_RETURN(auto tokens, gguf.strings("tokenizer.ggml.tokens"));
  if (tokens.empty() || tokens.size() > static_cast<size_t>(vocab_size)) {
    return base::error(Code::kInvalidArgument,
                       "{}: key 'tokenizer.ggml.tokens': expected 1 to {} tokens (the rows of "
                       "token_embd.weight), found {}",
                       gguf.file(), vocab_size, tokens.size());
  }
  data.tokens.assign(tokens.begin(), tokens.end());
  return {};
}

Result<void> read_kinds(const GgufFile& gguf, TokenizerData& data) {
  ASSIGN_OR_RETURN(auto types, gguf.int32s("tokenizer.ggml.token_type"));
  data.kinds.assign(data.tokens.size(), TokenKind::kNormal);
  if (gguf.find("tokenizer.ggml.token_type") == nullptr) return {};
  if (types.size() != data.tokens.size()) {
    return base::error(Code::kInvalidArgument,
                       "{}: key 'tokenizer.ggml.token_type': expected {} elements, found {}",
                       gguf.file(), data.tokens.size(), types.size());
  }
  for (size_t i = 0; i < types.size(); ++i) {
    switch (types[i]) {
      case 1:
        break;
      case 2:
        data.kinds[i] = TokenKind::kUnknown;
        break;
      case 3:
        data.kinds[i] = TokenKind::kControl;
        break;
      case 4:
        data.kinds[i] = TokenKind::kUserDefined;
        break;
      case 5:
        data.kinds[i] = TokenKind::kUnused;
        break;
      case 6:
        data.kinds[i] = TokenKind::kByte;
        break;
      default:
        return base::error(Code::kInvalidArgument,
                           "{}: key 'tokenizer.ggml.token_type': expected 1 to 6 for token {}, "
                           "found {}",
                           gguf.file(), i, types[i]);
    }
  }
  return {};
}

Result<void> read_merges(const GgufFile& gguf, TokenizerData& data) {
  ASSIGN_OR_RETURN(auto merges, gguf.strings("tokenizer.ggml.merges"));
  if (gguf.find("tokenizer.ggml.merges") == nullptr) {
    return base::error(Code::kInvalidArgument,
                       "{}: key 'tokenizer.ggml.merges': expected an array of strings, found none",
                       gguf.file());
  }
  data.merges.reserve(merges.size());
  for (std::string_view merge : merges) {
    const size_t space = merge.find(' ', 1);  // a left part may itself start with a space
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return base::error(Code::kInvalidArgument,
                         "{}: key 'tokenizer.ggml.merges': expected two parts with a space between "
                         "in merge {}, found '{}'",
                         gguf.file(), data.merges.size(), printable(merge));
    }
    data.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return {};
}

Result<void> read_scores(const GgufFile& gguf, TokenizerData& data) {
  ASSIGN_OR_RETURN(auto scores, gguf.floats("tokenizer.ggml.scores"));
  if (scores.size() != data.tokens.size()) {
    return base::error(Code::kInvalidArgument,
                       "{}: key 'tokenizer.ggml.scores': expected {} elements, found {}",
                       gguf.file(), data.tokens.size(), scores.size());
  }
  for (float score : scores) {
    if (score != score) {
      return base::error(Code::kInvalidArgument,
                         "{}: key 'tokenizer.ggml.scores': expected numbers, found NaN",
                         gguf.file());
    }
  }
  data.scores = std::move(scores);
  return {};
}

// The id under `key`, or -1. A value of all ones is how some converters write "none".
Result<TokenId> read_id(const GgufFile& gguf, const TokenizerData& data, std::string_view key) {
  ASSIGN_OR_RETURN(auto id, gguf.integer(key));
  if (!id || *id == -1 || *id == UINT32_MAX) return TokenId{-1};
  if (*id < 0 || *id >= static_cast<int64_t>(data.tokens.size())) {
    return base::error(Code::kInvalidArgument, "{}: key '{}': expected an id below {}, found {}",
                       gguf.file(), key, data.tokens.size(), *id);
  }
  return static_cast<TokenId>(*id);
}

Result<void> read_special_ids(const GgufFile& gguf, TokenizerData& data) {
  ASSIGN_OR_RETURN(data.bos, read_id(gguf, data, "tokenizer.ggml.bos_token_id"));
  ASSIGN_OR_RETURN(data.eos, read_id(gguf, data, "tokenizer.ggml.eos_token_id"));
  ASSIGN_OR_RETURN(data.unk, read_id(gguf, data, "tokenizer.ggml.unknown_token_id"));
  auto add_eog = [&](TokenId id) {
    if (id < 0 || id == data.eos) return;
    if (std::find(data.eog.begin(), data.eog.end(), id) == data.eog.end()) data.eog.push_back(id);
  };
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    ASSIGN_OR_RETURN(TokenId id, read_id(gguf, data, key));
    add_eog(id);
  }
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    if (data.kinds[i] != TokenKind::kControl) continue;
    const auto* found = std::find(std::begin(kEndOfTurn), std::end(kEndOfTurn), data.tokens[i]);
    if (found != std::end(kEndOfTurn)) add_eog(static_cast<TokenId>(i));
  }
  return {};
}

Result<void> read_options(const GgufFile& gguf, TokenizerData& data) {
  const bool spm = data.model == TokenizerData::Model::kSpm;
  // Vocabularies that start every text with bos and take a piece that is a token whole.
  const bool llama3 = !spm && (data.pre == "llama-bpe" || data.pre == "tekken");
  data.ignore_merges = llama3;
  data.byte_fallback = spm;
  ASSIGN_OR_RETURN(auto add_bos, gguf.boolean("tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(auto add_eos, gguf.boolean("tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(auto add_space, gguf.boolean("tokenizer.ggml.add_space_prefix"));
  data.add_bos = add_bos.value_or(spm || llama3) && data.bos >= 0;
  data.add_eos = add_eos.value_or(false) && data.eos >= 0;
  data.add_space_prefix = add_space.value_or(spm);
  return {};
}

// Whatever is no ordinary text is matched as one piece: control tokens where specials are parsed,
// user-defined ones always.
void list_added_tokens(TokenizerData& data) {
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const TokenKind kind = data.kinds[i];
    const bool special = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if (!special && kind != TokenKind::kUserDefined) continue;
    core::AddedToken token;
    token.id = static_cast<TokenId>(i);
    token.text = data.tokens[i];
    token.special = special;
    data.added.push_back(std::move(token));
  }
}

void pad_vocabulary(int32_t vocab_size, TokenizerData& data) {
  for (size_t id = data.tokens.size(); id < static_cast<size_t>(vocab_size); ++id) {
    data.tokens.push_back(fmt::format("[PAD{}]", id));
    data.kinds.push_back(TokenKind::kUnused);
    if (!data.scores.empty()) data.scores.push_back(-1000.0f);
  }
}

}  // namespace

Result<std::optional<TokenizerData>> read_gguf_tokenizer(const GgufFile& gguf, int32_t vocab_size) {
  ASSIGN_OR_RETURN(auto model, gguf.string("tokenizer.ggml.model"));
  if (!model || *model == "none" || *model == "no_vocab") return std::optional<TokenizerData>();
  TokenizerData data;
  if (*model == "llama") {
    data.model = TokenizerData::Model::kSpm;
  } else if (*model != "gpt2") {
    return base::error(Code::kUnsupported,
                       "{}: key 'tokenizer.ggml.model': expected gpt2 (byte-level BPE) or llama "
                       "(SentencePiece), found '{}'",
                       gguf.file(), printable(*model));
  }
  RETURN_IF_ERROR(read_tokens(gguf, vocab_size, data));
  RETURN_IF_ERROR(read_kinds(gguf, data));
  if (data.model == TokenizerData::Model::kBpe) {
    ASSIGN_OR_RETURN(auto pre, gguf.string("tokenizer.ggml.pre"));
    if (!pre) {
      LOG_WARN("{}: no key 'tokenizer.ggml.pre': prompts are split as GPT-2 splits them",
               gguf.file());
    }
    data.pre = pre.value_or("default");
    if (std::find(std::begin(kLlama3Names), std::end(kLlama3Names), data.pre) !=
        std::end(kLlama3Names)) {
      data.pre = "llama-bpe";
    }
    RETURN_IF_ERROR(read_merges(gguf, data));
  } else {
    RETURN_IF_ERROR(read_scores(gguf, data));
  }
  RETURN_IF_ERROR(read_special_ids(gguf, data));
  RETURN_IF_ERROR(read_options(gguf, data));
  ASSIGN_OR_RETURN(auto chat_template, gguf.string("tokenizer.chat_template"));
  data.chat_template = chat_template.value_or("");
  list_added_tokens(data);
  pad_vocabulary(vocab_size, data);
  return std::optional(std::move(data));
}

}  // namespace load
