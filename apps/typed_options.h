// From what was typed to what CLI11 parses: hyphens for underscores, vLLM's spellings for ours, and
// the config file's options where the command line has none.
//
// A config file is TOML with one option a line, named as on the command line (`max-num-seqs = 8`,
// `model = "..."`, flags true or false); it has no sections. It is read before CLI11 parses, so
// that checks and messages are those of the command line. Pure but for reading the file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace apps {

struct CommandLine {
  std::vector<std::string> arguments;
  std::string note;  // which of vLLM's options stand for which of ours; "" for none
};

// `app`: with all its subcommands and options, not parsed yet. vLLM's spellings are those of
// `serve`; a config file goes with each subcommand that has --config. Errors name the option, and
// the file where it stands there.
base::Result<CommandLine> read_command_line(const CLI::App& app,
                                            const std::vector<std::string>& typed);

}  // namespace apps
