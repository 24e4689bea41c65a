// The subcommands: options as parsed from the command line, and the functions that carry them out.
//
// Each returns an error for main() to print as one line; answers and tables go to standard output,
// everything else to standard error.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "apps/options.h"
#include "base/result.h"

namespace apps {

struct GenerateOptions {
  ServingOptions serving;
  std::string prompt;       // -p
  std::string prompt_file;  // -f; "-" is standard input
  bool chat = false;        // put the prompt through the chat template as one user message
  int32_t max_tokens = 256;
  float temperature = 0.0f;
  uint64_t seed = 0;
};
base::Result<void> generate(const GenerateOptions& options);

struct BenchOptions {
  ServingOptions serving;
  std::vector<int32_t> prompts{512};         // -p; 0 = no prompt test
  std::vector<int32_t> generate{128};        // -n; 0 = no generation test
  std::vector<int32_t> prompt_and_generate;  // --pg: of whole requests; empty: no such test
  std::vector<int32_t> depths{0};            // -d
  int32_t streams = 1;      // --streams: sequences at once in the tests that generate
  int32_t repetitions = 5;  // -r
  double request_rate = std::numeric_limits<double>::infinity();  // of whole requests, a second
  uint64_t seed = 0;                                              // of their arrivals
  std::string output = "md";                                      // -o md|csv|json|jsonl
  bool own_prompts = false;       // each stream has a depth of its own
  std::string replay_selections;  // a trace; "" = rows select for themselves
  std::string runs;               // a file of options, a run a line; "" = these
};
// What each run may set; the model and `runs` are the command's.
void add_bench_options(CLI::App& command, BenchOptions* options);
base::Result<void> bench(const BenchOptions& options);

struct EvalOptions {
  ServingOptions serving;
  std::string file;
  std::string output = "md";  // -o md|json
  bool verbose = false;
};
base::Result<void> eval_needles(const EvalOptions& options);

struct TraceOptions {
  ServingOptions serving;
  std::string file;    // a needle set
  std::string output;  // -o
};
base::Result<void> trace(const TraceOptions& options);

struct CalibrateOptions {
  ServingOptions serving;      // model, threads and instruction set
  std::string output;          // -o: the heads file
  double share = 0.5;          // of the heads to stream
  int32_t sink = 128;          // tokens
  int32_t local = 1024;        // tokens
  int32_t context = 8192;      // tokens of a document
  int32_t documents = 2;       // to measure on, and as many to judge on
  int32_t questions = 16;      // of a document
  int32_t random_choices = 5;  // to compare with
  uint64_t seed = 1;
  std::string text_file;  // "" = made-up sentences
};
base::Result<void> calibrate(const CalibrateOptions& options);

base::Result<void> inspect(const std::string& model, const std::string& load_format);

base::Result<void> serve(const ServingOptions& options, const ListenOptions& listen);

}  // namespace apps
