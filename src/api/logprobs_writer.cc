#include "api/logprobs_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "api/json_writer.h"
#include "text/utf8.h"

namespace api {
namespace {

bool whole_characters(std::string_view bytes) {
  return text::valid_prefix_bytes(bytes) == bytes.size();
}

void append_token_text(std::string& out, std::string_view bytes) {
  if (whole_characters(bytes)) return append_json_string(out, bytes);
  std::string spelled = "bytes:";
  for (const char c : bytes) spelled += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  append_json_string(out, spelled);
}

std::span<const core::TokenLogprob> best(const core::PositionLogprobs& position, int32_t top) {
  return std::span(position.top).first(std::min(position.top.size(), static_cast<size_t>(top)));
}

bool contains(std::span<const core::TokenLogprob> tokens, core::TokenId id) {
  return std::any_of(tokens.begin(), tokens.end(), [id](const auto& t) { return t.token == id; });
}

template <typename Append>
void append_array(std::string& out, const char* key,
                  const std::vector<CompletionsPosition>& positions, Append append) {
  out += key;
  for (size_t i = 0; i < positions.size(); ++i) {
    out += i == 0 ? '[' : ',';
    append(positions[i]);
  }
  out += positions.empty() ? "[]" : "]";
}

void append_chat_token(std::string& out, const text::Tokenizer& tokenizer,
                       const core::TokenLogprob& token) {
  const std::string_view bytes = tokenizer.token_bytes(token.token);
  out += "{\"token\":";
  append_json_string(out, bytes);
  out += ",\"logprob\":";
  append_json_logprob(out, token.logprob);
  out += ",\"bytes\":[";
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    append_json_int(out, static_cast<unsigned char>(bytes[i]));
  }
  out += ']';
}

}  // namespace

void append_completions_logprobs(std::string& out, const text::Tokenizer& tokenizer,
                                 const std::vector<CompletionsPosition>& positions, int32_t top) {
  append_array(out, "{\"tokens\":", positions,
               [&](const auto& p) { append_token_text(out, tokenizer.token_bytes(p.token)); });
  append_array(out, ",\"token_logprobs\":", positions, [&](const auto& p) {
    if (p.logprobs == nullptr) {
      out += "null";
    } else {
      append_json_logprob(out, p.logprobs->token.logprob);
    }
  });
  append_array(out, ",\"top_logprobs\":", positions, [&](const CompletionsPosition& p) {
    if (p.logprobs == nullptr) {
      out += "null";
      return;
    }
    out += '{';
    const auto append_entry = [&](const core::TokenLogprob& token) {
      if (out.back() != '{') out += ',';
      append_token_text(out, tokenizer.token_bytes(token.token));
      out += ':';
      append_json_logprob(out, token.logprob);
    };
    const auto tokens = best(*p.logprobs, top);
    for (const core::TokenLogprob& token : tokens) append_entry(token);
    if (!contains(tokens, p.token)) append_entry(p.logprobs->token);
    out += '}';
  });
  append_array(out, ",\"text_offset\":", positions,
               [&](const auto& p) { append_json_int(out, p.text_offset); });
  out += '}';
}

void append_chat_logprobs(std::string& out, const text::Tokenizer& tokenizer,
                          const std::vector<ScoredToken>& tokens, int32_t top) {
  out += "{\"content\":[";
  for (const ScoredToken& scored : tokens) {
    if (out.back() != '[') out += ',';
    append_chat_token(out, tokenizer, scored.logprobs.token);
    out += ",\"top_logprobs\":[";
    for (const core::TokenLogprob& token : best(scored.logprobs, top)) {
      if (out.back() != '[') out += ',';
      append_chat_token(out, tokenizer, token);
      out += '}';
    }
    out += "]}";
  }
  out += "]}";
}

void append_prompt_logprobs(std::string& out, const text::Tokenizer& tokenizer,
                            const std::vector<std::optional<core::PositionLogprobs>>& positions,
                            int32_t top) {
  out += '[';
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i > 0) out += ',';
    if (!positions[i]) {
      out += "null";
      continue;
    }
    out += '{';
    const auto append_entry = [&](const core::TokenLogprob& token, int32_t rank) {
      if (out.back() != '{') out += ',';
      out += fmt::format("\"{}\":{{\"logprob\":", token.token);
      append_json_logprob(out, token.logprob);
      out += fmt::format(",\"rank\":{},\"decoded_token\":", rank);
      append_json_string(out, tokenizer.token_bytes(token.token));
      out += '}';
    };
    const auto tokens = best(*positions[i], top);
    for (size_t rank = 0; rank < tokens.size(); ++rank)
      append_entry(tokens[rank], static_cast<int32_t>(rank) + 1);
    if (!contains(tokens, positions[i]->token.token))
      append_entry(positions[i]->token, positions[i]->rank);
    out += '}';
  }
  out += ']';
}

}  // namespace api
