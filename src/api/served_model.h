// What the API knows of the model it serves. Borrowed; constant while the server runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/tool_prompt.h"
#include "core/model_config.h"
#include "grammar/grammars.h"
#include "text/chat_template.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace api {

struct ServedModel {
  std::string served_name;               // what answers say
  std::vector<std::string> other_names;  // that requests may use as well
  int64_t created_s = 0;                 // unix time
  int32_t context_max = 0;               // tokens of prompt and output together
  core::ModelConfig config;
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatTemplate* chat_template = nullptr;
  grammar::Grammars* grammars = nullptr;  // thread-safe; null: no structured output

  // Tokens that may end a sequence unless the request ignores them.
  std::vector<core::TokenId> end_tokens;

  // How it writes calls and reasoning, and the special tokens that it does that with.
  TemplateTraits template_traits;
  text::CallFormat call_format = text::CallFormat::kNone;
  text::ReasoningFormat reasoning_format = text::ReasoningFormat::kNone;
  std::vector<core::TokenId> marker_tokens;
};

}  // namespace api
