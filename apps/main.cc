// spillway: one binary, a subcommand a task. The only reader of argv and the environment.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>

#include "apps/bench_serve.h"
#include "apps/commands.h"
#include "apps/help_formatter.h"
#include "apps/typed_options.h"
#include "base/log_event.h"

namespace {

// Exit status, as shells have it: the command line, the config file or a file that they name is
// wrong, or asks for what this program or machine does not do.
constexpr int kWrongInput = 2;

int exit_status(base::Code code) {
  // What is wrong is so again the next time: a supervisor need not try (packaging/).
  const bool stays = code == base::Code::kInvalidArgument || code == base::Code::kUnsupported;
  return stays ? kWrongInput : 1;
}

using apps::ServingOptions;

// The action of the subcommand that was named; set by its callback while CLI11 parses.
using Action = std::function<base::Result<void>()>;

// CLI::Range lets NaN through.
std::string check_number(const std::string& text) {
  float value = 0;
  return CLI::detail::lexical_cast(text, value) && !std::isnan(value) ? "" : "expected a number";
}

void add_serve(CLI::App& app, apps::LogOptions* logs, Action* action) {
  CLI::App* command = app.add_subcommand("serve", "serve a model behind the OpenAI API");
  auto serving = std::make_shared<ServingOptions>();
  auto listen = std::make_shared<apps::ListenOptions>();
  apps::add_model_options(*command, serving.get());
  apps::add_listen_options(*command, listen.get());
  apps::add_engine_options(*command, serving.get());
  apps::add_vllm_options(*command, serving.get());
  apps::add_log_options(*command, logs);
  command->footer(
      "\nOptions of vllm serve are taken too, as far as they mean something here.\n"
      "\nExamples:\n  spillway serve smollm2\n  spillway serve model.gguf --port 8080 "
      "--device-memory 16GiB --max-model-len 32768\n  spillway serve --config spillway.toml "
      "--log-format json\n"
      "  curl http://127.0.0.1:8000/v1/models");
  command->callback([=] { *action = [=] { return apps::serve(*serving, *listen); }; });
}

void add_generate(CLI::App& app, Action* action) {
  CLI::App* command =
      app.add_subcommand("generate", "continue a prompt and print the text as it comes");
  auto options = std::make_shared<apps::GenerateOptions>();
  apps::add_model_options(*command, &options->serving);
  auto* text = command->add_option("-p,--prompt", options->prompt, "the prompt");
  command
      ->add_option("-f,--file", options->prompt_file, "file with the prompt; - for standard input")
      ->excludes(text);
  command->add_flag("--chat", options->chat,
                    "send the prompt as a user message through the model's chat template");
  command->add_option("-n,--max-tokens", options->max_tokens, "tokens at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0 takes the likeliest token")
      ->check(CLI::Range(0.0f, 10.0f))
      ->check(CLI::Validator(check_number, ""))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "seed of the draws")
      ->check(apps::kSeed)
      ->capture_default_str();
  apps::add_engine_options(*command, &options->serving);
  command->footer(
      "\nExamples:\n  spillway generate smollm2 --chat -p 'Why is the sky blue?'\n  spillway "
      "generate model.gguf -f document.txt -n 64");
  command->callback([=] { *action = [=] { return apps::generate(*options); }; });
}

// Under bench: CLI11 would take "serve" for a MODEL that is required, so bench asks for its own in
// its callback.
CLI::App* add_bench_serve(CLI::App& bench, Action* action) {
  CLI::App* command = bench.add_subcommand(
      "serve", "put load on a running server (arguments and output as vllm bench serve has them)");
  CLI::Option* model = bench.get_option("model");
  model->required(false);
  command->excludes(model);
  auto options = std::make_shared<apps::BenchServeOptions>();
  apps::add_bench_serve_options(*command, options.get());
  command->footer(
      "\nExamples:\n  spillway bench serve --base-url http://127.0.0.1:8000 --num-prompts 64 "
      "--max-concurrency 8\n  spillway bench serve --request-rate 2 --random-input-len 8000 "
      "--goodput ttft:2000 tpot:100 --save-result");
  command->callback([=] { *action = [=] { return apps::bench_serve(*options); }; });
  return command;
}

void add_bench(CLI::App& app, Action* action) {
  CLI::App* command = app.add_subcommand(
      "bench", "measure prompt and generation speed (tests and output as llama-bench has them)");
  auto options = std::make_shared<apps::BenchOptions>();
  apps::add_model_options(*command, &options->serving);
  command
      ->add_option(
          "--runs", options->runs,
          "a file of these options, one run a line: all in one process, which keeps pinned "
          "memory between them")
      ->check(CLI::ExistingFile);
  apps::add_bench_options(*command, options.get());
  command->footer(
      "\nExamples:\n  spillway bench smollm2 -p 512,4096 -n 64\n  spillway bench model.gguf -p 0 "
      "-n 32 -d 0,7680 -r 3 -t 2 -o json");
  CLI::App* serve = add_bench_serve(*command, action);
  command->callback([=] {
    if (serve->parsed()) return;
    if (options->serving.model.empty()) throw CLI::RequiredError("model");
    *action = [=] { return apps::bench(*options); };
  });
}

void add_eval(CLI::App& app, Action* action) {
  CLI::App* group = app.add_subcommand("eval", "judge a model by right answers");
  group->require_subcommand(1);
  CLI::App* command = group->add_subcommand(
      "needles", "ask a needle set and count right answers by kind and depth");
  auto options = std::make_shared<apps::EvalOptions>();
  options->serving.deterministic = true;  // answers of two runs are compared
  apps::add_model_options(*command, &options->serving);
  command->add_option("file", options->file, "needle set, a JSON document a line")
      ->required()
      ->check(CLI::ExistingFile);
  command->add_option("-o,--output", options->output, "md or json")
      ->check(CLI::IsMember({"md", "json"}))
      ->capture_default_str();
  command->add_flag("-v,--verbose", options->verbose, "print every answer");
  apps::add_engine_options(*command, &options->serving);
  command->footer(
      "\nRuns with --deterministic unless --no-deterministic is given, which answers as serve "
      "does.\n"
      "\nExample:\n  spillway eval needles models/longneedle/longneedle-q8_0.gguf "
      "tests/data/needles/needles-8k.jsonl");
  command->callback([=] { *action = [=] { return apps::eval_needles(*options); }; });
}

void add_trace(CLI::App& app, Action* action) {
  CLI::App* command = app.add_subcommand(
      "trace", "write down which pages a model selects while it answers a needle set");
  auto options = std::make_shared<apps::TraceOptions>();
  options->serving.preset = "sparse";
  apps::add_model_options(*command, &options->serving);
  command->add_option("file", options->file, "needle set, a JSON document a line")
      ->required()
      ->check(CLI::ExistingFile);
  command->add_option("-o,--output", options->output, "file for the trace")->required();
  apps::add_engine_options(*command, &options->serving);
  command->footer(
      "\nExample:\n  spillway trace models/longneedle/longneedle-q8_0.gguf "
      "tests/data/needles/needles-8k.jsonl --budget 1024 -o trace.jsonl");
  command->callback([=] { *action = [=] { return apps::trace(*options); }; });
}

void add_calibrate(CLI::App& app, Action* action) {
  CLI::App* command = app.add_subcommand(
      "calibrate", "measure which KV heads may see only first and last tokens; write a heads file");
  auto options = std::make_shared<apps::CalibrateOptions>();
  apps::add_model_options(*command, &options->serving);
  command->add_option("-o,--output", options->output, "the heads file to write")->required();
  command->add_option("--share", options->share, "share of the KV heads to make streaming")
      ->check(CLI::Range(0.0, 1.0))
      ->check(CLI::Validator(check_number, ""))
      ->capture_default_str();
  command->add_option("--sink", options->sink, "first tokens that a streaming head sees")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--local", options->local, "last tokens that a streaming head sees")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--context", options->context, "tokens of a document")
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  command->add_option("--documents", options->documents, "to measure on, and as many to judge on")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--questions", options->questions, "facts planted in a document")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--random", options->random_choices, "random heads files to compare with")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "seed of the documents")
      ->check(apps::kSeed)
      ->capture_default_str();
  command->add_option("--text", options->text_file, "text file for the documents")
      ->check(CLI::ExistingFile);
  command->add_option("-t,--threads", options->serving.threads, "0: all physical cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->footer(
      "\nExample:\n  spillway calibrate smollm2 -o heads.json --share 0.5\n  spillway serve "
      "smollm2 "
      "--preset duo --heads heads.json");
  command->callback([=] { *action = [=] { return apps::calibrate(*options); }; });
}

void add_inspect(CLI::App& app, Action* action) {
  CLI::App* command = app.add_subcommand(
      "inspect", "print what a model file holds: shapes, types, tokenizer, limits");
  auto options = std::make_shared<ServingOptions>();
  apps::add_model_options(*command, options.get());
  command->footer("\nExample:\n  spillway inspect models/longneedle/longneedle-q8_0.gguf");
  command->callback(
      [=] { *action = [=] { return apps::inspect(options->model, options->load_format); }; });
}

}  // namespace

int main(int argc, char** argv) {
  // A file at the limit of its size (ulimit -f) is a write that fails, as on a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("spillway: serves long-context language models", "spillway");
  app.require_subcommand(1);
  app.set_version_flag("--version", SPILLWAY_VERSION);
  app.formatter(std::make_shared<apps::HelpFormatter>());
  apps::LogOptions logs;
  apps::add_log_options(app, &logs);
  Action action;
  add_serve(app, &logs, &action);
  add_generate(app, &action);
  add_bench(app, &action);
  add_eval(app, &action);
  add_trace(app, &action);
  add_calibrate(app, &action);
  add_inspect(app, &action);
  auto line = apps::read_command_line(app, {argv + 1, argv + std::max(argc, 1)});
  if (!line.ok()) {
    fmt::print(stderr, "spillway: {}\n", line.error().message);
    return kWrongInput;
  }
  try {
    std::vector<std::string> arguments = std::move(line->arguments);
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them last first
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kWrongInput;
  }
  base::Result<void> done = base::set_log_level(logs.level);
  if (done.ok()) done = base::set_log_format(logs.format);
  if (!line->note.empty()) LOG_INFO("vLLM's options: {}", line->note);
  if (done.ok()) done = action();
  if (!done.ok()) {
    if (base::logs_json()) {
      LOG_ERROR("{}", done.error().message);
    } else {
      fmt::print(stderr, "spillway: {}\n", done.error().message);
    }
    return exit_status(done.error().code);
  }
  return 0;
}
