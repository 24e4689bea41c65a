// Reads tokenizer.json: each component of the file becomes steps of core::TokenizerData or is
// refused by name.
#include <algorithm>
#include <utility>

#include "text/json_node.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace text {
namespace {

using core::RewriteStep;
using core::SplitStep;
using core::TokenizerData;

class Reader {
 public:
  explicit Reader(TokenizerData base) : data_(std::move(base)) {
    data_.model = TokenizerData::Model::kBpe;
    data_.pre.clear();
    data_.byte_level = data_.ignore_merges = data_.byte_fallback = data_.fuse_unk = false;
    data_.add_space_prefix = data_.add_bos = data_.add_eos = false;
    data_.normalize.clear();
    data_.prepare.clear();
    data_.split.clear();
    data_.decode_replace.clear();
    data_.decode_strip_spaces = 0;
    data_.tokens.clear();
    data_.kinds.clear();
    data_.scores.clear();
    data_.merges.clear();
    data_.added.clear();
    data_.unk = -1;
  }

  base::Result<TokenizerData> read(const JsonNode& root) {
    ASSIGN_OR_RETURN(const JsonNode model, root.at("model"));
    RETURN_IF_ERROR(read_model(model));
    if (const auto node = root.find("added_tokens")) RETURN_IF_ERROR(read_added_tokens(*node));
    if (const auto node = root.find("normalizer")) RETURN_IF_ERROR(read_normalizer(*node, 0));
    if (const auto node = root.find("pre_tokenizer")) RETURN_IF_ERROR(read_pre_tokenizer(*node, 0));
    if (const auto node = root.find("post_processor"))
      RETURN_IF_ERROR(read_post_processor(*node, 0));
    const auto decoder = root.find("decoder");
    if (!decoder) return root.unsupported("a tokenizer without decoder");
    RETURN_IF_ERROR(read_decoder(*decoder, 0));
    if (data_.byte_level != decodes_bytes_)
      return decoder->unsupported(
          "a ByteLevel pre-tokenizer without a ByteLevel decoder, or the reverse,");
    return std::move(data_);
  }

 private:
  base::Result<void> read_model(const JsonNode& model);
  base::Result<void> read_vocab(const JsonNode& vocab);
  base::Result<void> read_merges(const JsonNode& merges);
  base::Result<void> read_added_tokens(const JsonNode& list);
  base::Result<void> read_normalizer(const JsonNode& node, int depth);
  base::Result<void> read_pre_tokenizer(const JsonNode& node, int depth);
  base::Result<void> read_byte_level(const JsonNode& node);
  base::Result<void> read_metaspace(const JsonNode& node);
  base::Result<void> read_split(const JsonNode& node);
  base::Result<void> read_post_processor(const JsonNode& node, int depth);
  base::Result<void> read_template(const JsonNode& node);
  base::Result<void> read_decoder(const JsonNode& node, int depth);
  base::Result<void> read_strip(const JsonNode& node);
  base::Result<void> reserve_id(const JsonNode& where, int64_t id);

  TokenizerData data_;
  bool decodes_bytes_ = false;  // a ByteLevel decoder was met
  bool fused_ = false;          // a Fuse decoder was met: what follows sees the whole text
};

// A Sequence inside a Sequence is allowed, but not without end.
constexpr int kDepthMax = 8;

// Calls read(child, depth + 1) for each element of node[key].
template <typename Read>
base::Result<void> read_sequence(const JsonNode& node, std::string_view key, int depth, Read read) {
  if (depth == kDepthMax) return node.unsupported("nesting this deep");
  ASSIGN_OR_RETURN(const JsonNode list, node.at(key));
  ASSIGN_OR_RETURN(const auto array, list.array());
  size_t i = 0;
  for (const auto element : array) {
    RETURN_IF_ERROR(read(JsonNode(element, fmt::format("{}[{}]", list.path(), i++)), depth + 1));
  }
  return {};
}

base::Result<std::string> type_of(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode type, node.at("type"));
  return type.string();
}

struct Pattern {
  std::string text;
  bool regex = false;
};

// {"String": "..."} or {"Regex": "..."}
base::Result<Pattern> pattern_of(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode pattern, node.at("pattern"));
  const auto literal = pattern.find("String");
  const auto regex = pattern.find("Regex");
  if (!literal && !regex) return pattern.error("\"String\" or \"Regex\"");
  ASSIGN_OR_RETURN(std::string text, (literal ? literal : regex)->string());
  if (text.empty()) return pattern.error("a pattern that is not empty");
  return Pattern{std::move(text), !literal};
}

base::Result<std::string> string_at(const JsonNode& node, std::string_view key) {
  ASSIGN_OR_RETURN(const JsonNode found, node.at(key));
  return found.string();
}

base::Result<int64_t> integer_at(const JsonNode& node, std::string_view key) {
  ASSIGN_OR_RETURN(const JsonNode found, node.at(key));
  return found.integer();
}

base::Result<void> Reader::read_model(const JsonNode& model) {
  if (const auto type = model.find("type")) {
    ASSIGN_OR_RETURN(const std::string name, type->string());
    if (name != "BPE") return type->unsupported("the model " + name);
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto node = model.find(key);
    if (!node) continue;
    ASSIGN_OR_RETURN(const std::string affix, node->string());
    if (!affix.empty()) return node->unsupported("\"" + affix + "\"");
  }
  if (const auto dropout = model.find("dropout")) return dropout->unsupported("dropout");
  ASSIGN_OR_RETURN(data_.byte_fallback, model.boolean_or("byte_fallback", false));
  ASSIGN_OR_RETURN(data_.fuse_unk, model.boolean_or("fuse_unk", false));
  ASSIGN_OR_RETURN(data_.ignore_merges, model.boolean_or("ignore_merges", false));
  ASSIGN_OR_RETURN(const JsonNode vocab, model.at("vocab"));
  RETURN_IF_ERROR(read_vocab(vocab));
  ASSIGN_OR_RETURN(const JsonNode merges, model.at("merges"));
  RETURN_IF_ERROR(read_merges(merges));
  if (const auto unk = model.find("unk_token")) {
    ASSIGN_OR_RETURN(const std::string text, unk->string());
    const auto at = std::find(data_.tokens.begin(), data_.tokens.end(), text);
    if (text.empty() || at == data_.tokens.end()) return unk->error("a token of the vocabulary");
    data_.unk = static_cast<core::TokenId>(at - data_.tokens.begin());
  }
  return {};
}

// Vocabularies may have holes, but a file of a few bytes cannot ask for gigabytes.
base::Result<void> Reader::reserve_id(const JsonNode& where, int64_t id) {
  const int64_t known = static_cast<int64_t>(data_.tokens.size());
  constexpr int64_t kHoleMax = 4096;
  if (id < 0 || id > 2 * known + kHoleMax)
    return where.error(fmt::format("an id that fits a vocabulary of {}, not {}", known, id));
  if (id >= known) data_.tokens.resize(static_cast<size_t>(id) + 1);
  return {};
}

base::Result<void> Reader::read_vocab(const JsonNode& vocab) {
  ASSIGN_OR_RETURN(const auto object, vocab.object());
  size_t count = 0;
  for ([[maybe_unused]] const auto field : object) ++count;
  data_.tokens.resize(count);
  for (const auto field : object) {
    int64_t id = -1;
    if (field.value.get(id) != simdjson::SUCCESS)
      return vocab.error(fmt::format("an integer id for {:?}", field.key));
    if (field.key.empty()) return vocab.error("tokens that are not empty");
    RETURN_IF_ERROR(reserve_id(vocab, id));
    std::string& token = data_.tokens[static_cast<size_t>(id)];
    if (!token.empty())
      return vocab.error(
          fmt::format("one token of id {}, not {:?} and {:?}", id, token, field.key));
    token = field.key;
  }
  return {};
}

base::Result<void> Reader::read_merges(const JsonNode& merges) {
  ASSIGN_OR_RETURN(const auto array, merges.array());
  data_.merges.reserve(array.size());
  for (const auto element : array) {
    std::string_view left, right;
    simdjson::dom::array pair;
    if (element.get(left) == simdjson::SUCCESS) {
      const size_t space = left.find(' ');
      if (space != left.npos) right = left.substr(space + 1);
      left = left.substr(0, space);
    } else if (element.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
               pair.at(0).get(left) != simdjson::SUCCESS ||
               pair.at(1).get(right) != simdjson::SUCCESS) {
      left = {};
    }
    if (left.empty() || right.empty()) {
      return merges.error(
          fmt::format("\"left right\" or [\"left\", \"right\"] as merge {}", data_.merges.size()));
    }
    data_.merges.emplace_back(left, right);
  }
  return {};
}

base::Result<void> Reader::read_added_tokens(const JsonNode& list) {
  ASSIGN_OR_RETURN(const auto array, list.array());
  for (const auto element : array) {
    const JsonNode node(element, fmt::format("{}[{}]", list.path(), data_.added.size()));
    ASSIGN_OR_RETURN(const int64_t id, integer_at(node, "id"));
    core::AddedToken token;
    ASSIGN_OR_RETURN(token.text, string_at(node, "content"));
    ASSIGN_OR_RETURN(token.special, node.boolean_or("special", false));
    ASSIGN_OR_RETURN(token.lstrip, node.boolean_or("lstrip", false));
    ASSIGN_OR_RETURN(token.rstrip, node.boolean_or("rstrip", false));
    ASSIGN_OR_RETURN(token.normalized, node.boolean_or("normalized", true));
    ASSIGN_OR_RETURN(token.single_word, node.boolean_or("single_word", false));
    RETURN_IF_ERROR(reserve_id(node, id));
    token.id = static_cast<core::TokenId>(id);
    std::string& spelling = data_.tokens[static_cast<size_t>(id)];
    if (token.text.empty()) return node.error("content that is not empty");
    if (!spelling.empty() && spelling != token.text) {
      return node.error(
          fmt::format("the id of {:?}, not {}, which is {:?}", token.text, id, spelling));
    }
    spelling = token.text;
    data_.added.push_back(std::move(token));
  }
  return {};
}

base::Result<void> Reader::read_normalizer(const JsonNode& node, int depth) {
  ASSIGN_OR_RETURN(const std::string type, type_of(node));
  if (type == "Sequence") {
    return read_sequence(node, "normalizers", depth, [&](const JsonNode& child, int level) {
      return read_normalizer(child, level);
    });
  }
  RewriteStep step;
  if (type == "NFC") {
    step.kind = RewriteStep::Kind::kNfc;
  } else if (type == "Replace") {
    step.kind = RewriteStep::Kind::kReplace;
    ASSIGN_OR_RETURN(Pattern pattern, pattern_of(node));
    step.pattern = std::move(pattern.text);
    step.regex = pattern.regex;
    ASSIGN_OR_RETURN(step.content, string_at(node, "content"));
  } else if (type == "Prepend") {
    step.kind = RewriteStep::Kind::kPrepend;
    ASSIGN_OR_RETURN(step.content, string_at(node, "prepend"));
  } else {
    return node.unsupported("the normalizer " + type);
  }
  data_.normalize.push_back(std::move(step));
  return {};
}

base::Result<void> Reader::read_pre_tokenizer(const JsonNode& node, int depth) {
  ASSIGN_OR_RETURN(const std::string type, type_of(node));
  if (type == "Sequence") {
    return read_sequence(node, "pretokenizers", depth, [&](const JsonNode& child, int level) {
      return read_pre_tokenizer(child, level);
    });
  }
  if (data_.byte_level) return node.unsupported("the pre-tokenizer " + type + " after ByteLevel");
  if (type == "Split") return read_split(node);
  if (type == "ByteLevel") return read_byte_level(node);
  if (type == "Metaspace") return read_metaspace(node);
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool each, node.boolean_or("individual_digits", false));
    data_.split.push_back({.pattern = each ? "\\p{N}" : "\\p{N}+"});
    return {};
  }
  return node.unsupported("the pre-tokenizer " + type);
}

base::Result<void> Reader::read_split(const JsonNode& node) {
  using Matches = SplitStep::Matches;
  ASSIGN_OR_RETURN(Pattern pattern, pattern_of(node));
  ASSIGN_OR_RETURN(const std::string behavior, string_at(node, "behavior"));
  ASSIGN_OR_RETURN(const bool invert, node.boolean_or("invert", false));
  SplitStep step{.pattern = std::move(pattern.text), .regex = pattern.regex, .invert = invert};
  constexpr std::pair<std::string_view, Matches> kBehaviors[] = {
      {"Removed", Matches::kRemoved},
      {"Isolated", Matches::kIsolated},
      {"MergedWithPrevious", Matches::kMergedWithPrevious},
      {"MergedWithNext", Matches::kMergedWithNext},
      {"Contiguous", Matches::kContiguous}};
  const auto* found = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                   [&](const auto& b) { return b.first == behavior; });
  if (found == std::end(kBehaviors)) return node.unsupported("the behavior " + behavior);
  step.matches = found->second;
  data_.split.push_back(std::move(step));
  return {};
}

base::Result<void> Reader::read_byte_level(const JsonNode& node) {
  ASSIGN_OR_RETURN(const bool prefix, node.boolean_or("add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, node.boolean_or("use_regex", true));
  if (prefix) {
    // The prefix goes before each piece; where text is not cut yet there is one piece.
    if (!data_.split.empty())
      return node.unsupported("add_prefix_space after another pre-tokenizer");
    data_.prepare.push_back({.kind = RewriteStep::Kind::kPrependMissing, .content = " "});
  }
  if (use_regex) data_.split.push_back({.pattern = std::string(kGpt2Pattern)});
  data_.byte_level = true;
  return {};
}

base::Result<void> Reader::read_metaspace(const JsonNode& node) {
  if (!data_.split.empty() || !data_.prepare.empty())
    return node.unsupported("Metaspace after another pre-tokenizer");
  ASSIGN_OR_RETURN(const std::string symbol, string_at(node, "replacement"));
  if (symbol.empty()) return node.error("a replacement that is not empty");
  ASSIGN_OR_RETURN(const bool split, node.boolean_or("split", true));
  ASSIGN_OR_RETURN(const bool prefix, node.boolean_or("add_prefix_space", true));
  std::string scheme = prefix ? "always" : "never";
  if (const auto given = node.find("prepend_scheme")) {
    ASSIGN_OR_RETURN(scheme, given->string());
  }
  data_.prepare.push_back({.kind = RewriteStep::Kind::kReplace, .pattern = " ", .content = symbol});
  if (scheme == "always") {
    data_.prepare.push_back({.kind = RewriteStep::Kind::kPrependMissing, .content = symbol});
  } else if (scheme == "first") {
    data_.prepare.push_back({.kind = RewriteStep::Kind::kPrependFirst, .content = symbol});
  } else if (scheme != "never") {
    return node.unsupported("the prepend_scheme " + scheme);
  }
  if (split)
    data_.split.push_back(
        {.pattern = symbol, .regex = false, .matches = SplitStep::Matches::kMergedWithNext});
  return {};
}

base::Result<void> Reader::read_post_processor(const JsonNode& node, int depth) {
  ASSIGN_OR_RETURN(const std::string type, type_of(node));
  if (type == "Sequence") {
    return read_sequence(node, "processors", depth, [&](const JsonNode& child, int level) {
      return read_post_processor(child, level);
    });
  }
  if (type == "ByteLevel") return {};  // moves offsets only
  if (type == "TemplateProcessing") return read_template(node);
  return node.unsupported("the post-processor " + type);
}

// At most one special token before the text and one after it.
base::Result<void> Reader::read_template(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode single, node.at("single"));
  ASSIGN_OR_RETURN(const auto array, single.array());
  bool text_met = false;
  for (const auto element : array) {
    const JsonNode item(element, single.path());
    if (item.find("Sequence")) {
      if (text_met) return single.unsupported("a template with the text twice");
      text_met = true;
      continue;
    }
    ASSIGN_OR_RETURN(const JsonNode special, item.at("SpecialToken"));
    ASSIGN_OR_RETURN(const std::string name, string_at(special, "id"));
    ASSIGN_OR_RETURN(const JsonNode table, node.at("special_tokens"));
    ASSIGN_OR_RETURN(const JsonNode entry, table.at(name));
    ASSIGN_OR_RETURN(const JsonNode ids, entry.at("ids"));
    ASSIGN_OR_RETURN(const auto list, ids.array());
    bool& placed = text_met ? data_.add_eos : data_.add_bos;
    int64_t id = -1;
    if (placed || list.size() != 1)
      return single.unsupported("more than one token before or after the text");
    if (list.at(0).get(id) != simdjson::SUCCESS || id < 0 ||
        id >= static_cast<int64_t>(data_.tokens.size())) {
      return ids.error("the id of a token");
    }
    placed = true;
    (text_met ? data_.eos : data_.bos) = static_cast<core::TokenId>(id);
  }
  if (!text_met) return single.error("a template with the text in it");
  return {};
}

// Steps before Fuse see tokens, steps after it the whole text.
base::Result<void> Reader::read_decoder(const JsonNode& node, int depth) {
  ASSIGN_OR_RETURN(const std::string type, type_of(node));
  if (type == "Sequence") {
    return read_sequence(node, "decoders", depth, [&](const JsonNode& child, int level) {
      return read_decoder(child, level);
    });
  }
  if (type == "Fuse") {
    fused_ = true;
    return {};
  }
  if (type == "Strip") return read_strip(node);
  if (fused_) return node.unsupported("the decoder " + type + " after Fuse");
  if (type == "ByteLevel") {
    decodes_bytes_ = true;
    return {};
  }
  if (type == "ByteFallback") {
    if (!data_.byte_fallback)
      return node.unsupported("a ByteFallback decoder without byte_fallback");
    return {};
  }
  if (type == "Replace") {
    ASSIGN_OR_RETURN(Pattern pattern, pattern_of(node));
    if (pattern.regex) return node.unsupported("a Replace decoder with a regular expression");
    ASSIGN_OR_RETURN(std::string content, string_at(node, "content"));
    data_.decode_replace.emplace_back(std::move(pattern.text), std::move(content));
    return {};
  }
  if (type == "Metaspace") {
    ASSIGN_OR_RETURN(std::string symbol, string_at(node, "replacement"));
    if (symbol.empty()) return node.error("a replacement that is not empty");
    ASSIGN_OR_RETURN(const bool prefix, node.boolean_or("add_prefix_space", true));
    bool strip = prefix;
    if (const auto scheme = node.find("prepend_scheme")) {
      ASSIGN_OR_RETURN(const std::string name, scheme->string());
      strip = name != "never";
    }
    data_.decode_replace.emplace_back(std::move(symbol), " ");
    data_.decode_strip_spaces = strip ? 1 : 0;
    return {};
  }
  return node.unsupported("the decoder " + type);
}

base::Result<void> Reader::read_strip(const JsonNode& node) {
  if (!fused_) return node.unsupported("the decoder Strip before Fuse");
  ASSIGN_OR_RETURN(const std::string content, string_at(node, "content"));
  ASSIGN_OR_RETURN(const int64_t start, integer_at(node, "start"));
  ASSIGN_OR_RETURN(const int64_t stop, integer_at(node, "stop"));
  if (content != " " || stop != 0 || start < 0 || start > INT32_MAX)
    return node.unsupported("stripping other than leading spaces");
  data_.decode_strip_spaces = static_cast<int32_t>(start);
  return {};
}

}  // namespace

base::Result<TokenizerData> read_tokenizer_json(std::string_view json, TokenizerData base) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error =
          parser.parse(json.data(), json.size(), /*realloc_if_needed=*/true).get(root);
      error != simdjson::SUCCESS) {
    return base::error(base::Code::kInvalidArgument, "tokenizer.json: {}",
                       simdjson::error_message(error));
  }
  return Reader(std::move(base)).read(JsonNode(root, "tokenizer.json"));
}

}  // namespace text
