// Cuts a template into tokens, with the white-space rules of the environment that chat templates
// are written for: the newline after a block tag is dropped (trim_blocks), blanks before a block
// tag that stands first on its line are dropped (lstrip_blocks), `-` strips all white space on its
// side and `+` keeps it. One trailing newline of the template is dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace text::jinja {

enum class TokenType : uint8_t {
  kData,
  kBlockBegin,
  kBlockEnd,
  kOutputBegin,
  kOutputEnd,
  kName,
  kString,
  kInt,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;  // of a string: the characters meant, escapes resolved
  int64_t integer = 0;
  double real = 0;
  int32_t line = 0;
};

// Errors: kInvalidArgument with the line.
base::Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace text::jinja
