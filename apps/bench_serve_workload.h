// What a load test sends, and when: request bodies and arrival times, all drawn from one seed.
//
// Bodies are made before the clock starts, so that making them delays nothing that is measured;
// about 7 bytes a token. Pure but for reading the data set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench_serve.h"
#include "apps/bench_serve_dataset.h"
#include "base/result.h"

namespace apps {

struct LoadRequest {
  std::string body;          // JSON
  int64_t input_tokens = 0;  // as asked for; 0 = only the server knows
};

// Whether prompts are drawn and not read; such answers never end at an end token.
bool is_random(const BenchServeOptions& options);

// Requests of the data set. `model` is the name to send. `vocabulary` holds the token ids that
// random prompts for completions are drawn from; empty: they are words, about a token each, as they
// always are for chats. `stream` tells random sets drawn from one seed apart, all but their
// prefixes: 0 is the run, 1 the warm-up. Errors: kInvalidArgument, kIo (the data set), kTooLarge
// (8 GiB of prompts).
base::Result<std::vector<LoadRequest>> make_requests(const BenchServeOptions& options,
                                                     const std::string& model,
                                                     const std::vector<int32_t>& vocabulary,
                                                     const CountTokens& count_tokens, int64_t count,
                                                     uint32_t stream);

// A text of common words, for finding token ids that a tokenizer makes of text.
std::string common_words();

// Seconds from the start to each arrival, ascending: gaps of a gamma distribution of shape
// `burstiness` (1: a Poisson process), scaled so that `count` requests take count / rate seconds.
// All 0 for an infinite rate.
std::vector<double> arrival_times(int64_t count, double rate, double burstiness, uint64_t seed);

}  // namespace apps
