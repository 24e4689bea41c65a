// The flags of presets on the command line: --preset and what changes one value of it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "apps/presets.h"

namespace apps {

// What contradicts each other is found by choose_kv().
void add_kv_options(CLI::App& command, std::string* preset, KvFlags* flags);

}  // namespace apps
