#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "load/hf_config.h"
#include "load/huggingface.h"
#include "load/json.h"

namespace load {
namespace {

using base::Code;
using base::Result;
using core::TokenId;

// Text -> id of the tokens that tokenizer_config.json lists.
Result<std::map<std::string, TokenId, std::less<>>> read_added_tokens(const JsonObject& root) {
  std::map<std::string, TokenId, std::less<>> ids;
  ASSIGN_OR_RETURN(const auto tokens, root.object("added_tokens_decoder"));
  if (tokens == nullptr) return ids;
  for (const auto& [key, value] : tokens->fields()) {
    TokenId id = -1;
    const auto number = std::from_chars(key.data(), key.data() + key.size(), id);
    if (number.ec != std::errc() || number.ptr != key.data() + key.size() || id < 0) {
      return base::error(Code::kInvalidArgument, "{}: key '{}': expected a token id as its name",
                         root.file(), tokens->name_of(key));
    }
    ASSIGN_OR_RETURN(const auto token, tokens->object(key));
    if (token == nullptr) return tokens->wrong(key, "an object");
    ASSIGN_OR_RETURN(auto content, token->string("content"));
    if (!content) return token->wrong("content", "a string");
    ids.emplace(*content, id);
  }
  return ids;
}

// A token given as its text, or as an object with the text as content. Empty when absent.
Result<std::string> read_token_text(const JsonObject& root, std::string_view key) {
  std::optional<JsonValue> value = root.find(key);
  if (!value) return std::string();
  std::string_view text;
  if (value->get(text) == simdjson::SUCCESS) return std::string(text);
  simdjson::dom::object ignored;
  if (value->get(ignored) != simdjson::SUCCESS) return root.wrong(key, "a string or an object");
  ASSIGN_OR_RETURN(const auto object, root.object(key));
  ASSIGN_OR_RETURN(auto content, object->string("content"));
  if (!content) return object->wrong("content", "a string");
  return std::string(*content);
}

// The template, or the one called "default" of a list of named ones. Empty when absent.
Result<std::string> read_chat_template(const JsonObject& root) {
  std::optional<JsonValue> value = root.find("chat_template");
  if (!value) return std::string();
  std::string_view text;
  if (value->get(text) == simdjson::SUCCESS) return std::string(text);
  simdjson::dom::array list;
  if (value->get(list) != simdjson::SUCCESS) {
    return root.wrong("chat_template", "a string or an array of named templates");
  }
  for (JsonValue element : list) {
    std::string_view name, body;
    if (element["name"].get(name) != simdjson::SUCCESS ||
        element["template"].get(body) != simdjson::SUCCESS) {
      return root.wrong("chat_template", "elements with a name and a template, both strings");
    }
    if (name == "default") return std::string(body);
  }
  return root.wrong("chat_template", "one named 'default' among them");
}

// What tokenizer_config.json says of one special token: its id where the file lists it, else what
// config.json said.
Result<TokenId> read_token_id(const JsonObject& root, std::string_view key,
                              const std::map<std::string, TokenId, std::less<>>& ids,
                              TokenId otherwise) {
  ASSIGN_OR_RETURN(const std::string text, read_token_text(root, key));
  if (text.empty()) return TokenId{-1};
  auto it = ids.find(text);
  return it == ids.end() ? otherwise : it->second;
}

Result<void> read_tokenizer_config(const std::string& file, std::string_view json,
                                   core::TokenizerData& data) {
  ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(file, json));
  ASSIGN_OR_RETURN(const JsonObject root, document.root());
  ASSIGN_OR_RETURN(const auto ids, read_added_tokens(root));
  ASSIGN_OR_RETURN(data.bos, read_token_id(root, "bos_token", ids, data.bos));
  ASSIGN_OR_RETURN(data.eos, read_token_id(root, "eos_token", ids, data.eos));
  ASSIGN_OR_RETURN(data.unk, read_token_id(root, "unk_token", ids, -1));
  ASSIGN_OR_RETURN(auto add_bos, root.boolean("add_bos_token"));
  ASSIGN_OR_RETURN(auto add_eos, root.boolean("add_eos_token"));
  data.add_bos = add_bos.value_or(false);
  data.add_eos = add_eos.value_or(false);
  ASSIGN_OR_RETURN(data.chat_template, read_chat_template(root));
  return {};
}

Result<void> read_generation_config(const std::string& file, std::string_view json,
                                    core::ModelConfig& config) {
  ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(file, json));
  ASSIGN_OR_RETURN(const JsonObject root, document.root());
  ASSIGN_OR_RETURN(const auto bos, read_hf_token_ids(root, "bos_token_id"));
  ASSIGN_OR_RETURN(auto eos, read_hf_token_ids(root, "eos_token_id"));
  if (!bos.empty()) config.bos = bos[0];
  if (!eos.empty()) config.eos = std::move(eos);
  return {};
}

}  // namespace

Result<void> read_hf_tokenizer(const std::string& folder, HfTexts texts, ModelFiles& model) {
  core::ModelConfig& config = model.config;
  core::TokenizerData& data = model.tokenizer;
  if (!texts.generation_config.empty()) {
    RETURN_IF_ERROR(read_generation_config(folder + "/generation_config.json",
                                           texts.generation_config, config));
  }
  data.bos = config.bos;
  data.eos = config.eos.empty() ? -1 : config.eos[0];
  if (!texts.tokenizer_config.empty()) {
    RETURN_IF_ERROR(
        read_tokenizer_config(folder + "/tokenizer_config.json", texts.tokenizer_config, data));
  }
  if (!texts.chat_template.empty()) data.chat_template = std::move(texts.chat_template);
  const bool known = std::find(config.eos.begin(), config.eos.end(), data.eos) != config.eos.end();
  if (data.eos >= 0 && !known) config.eos.push_back(data.eos);
  for (TokenId id : config.eos) {
    if (id != data.eos) data.eog.push_back(id);
  }
  model.has_tokenizer = !texts.tokenizer_json.empty();
  model.tokenizer_json = std::move(texts.tokenizer_json);
  return {};
}

}  // namespace load
