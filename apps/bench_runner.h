// What spillway bench measures: one test after another as requests through an engine, as a server
// would run them. Prompts are seeded random tokens, the same on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/completion.h"
#include "apps/decode_meter.h"
#include "apps/house.h"
#include "base/result.h"

namespace apps {

// A prompt alone, generation alone behind `depth` tokens, or, with both, whole requests.
struct BenchTest {
  int32_t prompt = 0, generate = 0, depth = 0;
  std::vector<double> samples_ns;              // of the repetitions
  std::vector<double> decode_ts, decode_rows;  // while only decode rows ran
  std::vector<DecodeWindow> windows;           // while only decode rows ran, all repetitions
  core::LoopTimes loop;                        // while only decode rows ran, all repetitions
  int64_t loop_steps = 0;
  // Means over the requests of the last repetition: to the first step, to the first token, and
  // between tokens.
  double delay_ms = 0, ttft_ms = 0, tbt_ms = 0;
  std::vector<engine::RequestTimes> requests;  // of the last repetition, in their order

  bool is_prompt() const { return prompt > 0 && generate == 0; }
  bool is_whole() const { return prompt > 0 && generate > 0; }
  // Requests of one repetition.
  int32_t streams(const BenchOptions& options) const { return is_prompt() ? 1 : options.streams; }
  int64_t tokens(const BenchOptions& options) const {
    return int64_t{prompt + generate} * streams(options);
  }
  std::string name() const;  // as llama-bench has it: "pp512", "tg128 @ d4096", "pp512+tg128"
};

double mean(std::span<const double> values);
double deviation(std::span<const double> values);

class BenchRunner {
 public:
  BenchRunner(const BenchOptions& options, House& house) : options_(options), house_(house) {}
  base::Result<void> run(BenchTest* test);

 private:
  base::Result<double> once(BenchTest* test, const std::string& salt, uint64_t repetition);
  core::Request make_request(const BenchTest& test, const std::string& salt, uint64_t repetition,
                             uint64_t stream) const;

  const BenchOptions& options_;
  House& house_;
  int64_t next_salt_ = 0;
};

}  // namespace apps
