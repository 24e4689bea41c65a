// Needle sets: long texts with planted facts and the questions that ask for them
// (tests/data/needles/README.md).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "core/request.h"
#include "text/tokenizer.h"

namespace apps {

struct NeedleItem {
  std::string kind, question, answer;
  double depth = 0;  // [0, 1] where the fact stands in the context
};

struct NeedleDocument {
  std::string id, context;
  std::vector<NeedleItem> items;
};

// The documents of a file of one JSON object a line. Errors: kNotFound; kInvalidArgument naming
// file and line.
base::Result<std::vector<NeedleDocument>> read_needles(const std::string& path);

// A greedy request whose prompt is the context and a line end, and whose output begins with `given`
// (core/request.h) and goes on for at most `max_tokens` tokens.
core::Request ask_needle(const text::Tokenizer& tokenizer, const NeedleDocument& document,
                         const std::string& given, int32_t max_tokens);

}  // namespace apps
