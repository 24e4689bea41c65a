#include "apps/commands.h"

namespace apps {

void add_bench_options(CLI::App& command, BenchOptions* o) {
  command.add_option("-p,--n-prompt", o->prompts, "prompt lengths; 0 leaves the test out")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command.add_option("-n,--n-gen", o->generate, "tokens to generate; 0 leaves the test out")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command
      .add_option("--pg", o->prompt_and_generate,
                  "P,N: also whole requests, prompts of P tokens with N generated ones")
      ->delimiter(',')
      ->expected(2)
      ->check(CLI::Range(1, 1 << 24));
  command.add_option("-d,--n-depth", o->depths, "tokens already in the context")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command.add_option("--streams", o->streams, "sequences generating at once; whole requests")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      .add_option("--request-rate", o->request_rate,
                  "whole requests that arrive a second, as a Poisson process; inf: all at once")
      ->check(kRate)
      ->capture_default_str();
  command.add_option("--seed", o->seed, "seed of their arrivals")
      ->check(kSeed)
      ->capture_default_str();
  command.add_option("-r,--repetitions", o->repetitions, "repetitions of each test")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      .add_option("-o,--output", o->output,
                  "md, csv, json, or jsonl: each row on a line as it ends")
      ->check(CLI::IsMember({"md", "csv", "json", "jsonl"}))
      ->capture_default_str();
  command.add_flag("--own-prompts", o->own_prompts,
                   "each of the streams has a depth of its own instead of a shared one");
  command
      .add_option_function<std::string>(
          "--fill", [o](const std::string&) { o->serving.fill_random = true; },
          "random: prompts are not computed, their K and V are random (GPU only)")
      ->check(CLI::IsMember({"random"}));
  command
      .add_option(
          "--replay-selections", o->replay_selections,
          "rows attend to the pages of a trace instead of their own choice; prints how local "
          "they are on the CPU, which --device auto then takes")
      ->check(CLI::ExistingFile);
  add_engine_options(command, &o->serving);
}

}  // namespace apps
