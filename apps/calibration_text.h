// Documents for calibration: long text with planted facts, then questions with their answers, which
// only heads that see far can know.
//
// The same seed gives the same documents. Facts follow RULER (arXiv 2404.06654): magic numbers and
// words, secrets, pass keys, hex keys and values, variables behind one or two assignments.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/ids.h"
#include "text/tokenizer.h"

namespace apps {

struct CalibrationDocument {
  std::vector<core::TokenId> tokens;
  int32_t questions_begin = 0;  // tokens before it are the long text
  struct Answer {
    int32_t begin = 0, end = 0;  // tokens of the answer
  };
  std::vector<Answer> answers;
};

// Random numbers that are the same everywhere (splitmix64).
class CalibrationRandom {
 public:
  explicit CalibrationRandom(uint64_t seed) : state_(seed) {}
  uint64_t next();
  size_t below(size_t n) { return static_cast<size_t>(next() % n); }  // n > 0
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

// A text of about `context_tokens` tokens with `questions` facts, and the questions behind it.
// `filler`: lines that the facts stand among, from a place drawn at random on; empty: made-up
// sentences.
CalibrationDocument make_calibration_document(const text::Tokenizer& tokenizer,
                                              std::span<const std::string> filler,
                                              int32_t context_tokens, int32_t questions,
                                              CalibrationRandom* random);

}  // namespace apps
