// The files that `bench serve` takes prompts from: each is read into texts with lengths of answers.
// Reads files; otherwise pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench_serve.h"
#include "base/result.h"

namespace apps {

struct Prompt {
  std::string text;
  int64_t output_tokens = 0;
};

// Tokens of a text as the server counts them; empty: it does not say.
using CountTokens = std::function<std::optional<int64_t>(const std::string& text)>;

// The first `count` prompts of a set; fewer where it has fewer, never none.
//
//   custom     a line is {"prompt": TEXT, "output_tokens": N}; in the order of the lines
//   sharegpt   a line (or an element of one JSON array) is {"conversations": [{"value": TEXT},
//   ...]}:
//              the first turn asks, and the answer is as long as the second one. Conversations with
//              fewer turns, or with an empty one, are left out; drawn by options.seed
//   documents  a line is {"context": TEXT} with {"items": [{"question": TEXT}, ...]} or {"input":
//   TEXT}:
//              a prompt is the context and a question. The first question of each document, then
//              the second of each, and so on: no document is asked twice before all others were
//
// Errors: kInvalidArgument (names file and line), kIo, kTooLarge (8 GiB of prompts).
base::Result<std::vector<Prompt>> read_dataset(const BenchServeOptions& options, int64_t count,
                                               const CountTokens& count_tokens);

// What all prompts of a run may take in memory.
constexpr int64_t kPromptBytesMax = int64_t{8} << 30;

}  // namespace apps
