// The flags of presets on the command line: --preset and what changes one value of it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "apps/presets.h"

namespace apps {

// Flags and presets of mechanisms that this version does not have are known by name and refused
// with a line that says so.
void add_kv_options(CLI::App& command, std::string* preset, KvFlags* flags);

}  // namespace apps
