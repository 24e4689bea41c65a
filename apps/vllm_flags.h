// vLLM's spellings of options, so that a command line of `vllm serve` works here as far as it can.
//
// What has a counterpart becomes it; what only says how things are here anyway is dropped; what
// cannot be had is refused by name. Nothing is ignored silently: each change is told in `note`.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace apps {

// What an option of vLLM's comes to here.
struct Translated {
  std::vector<std::string> arguments;  // ours; none: there is nothing to be said
  std::string note;                    // "--block-size 16 is --page-size 16"; "" if nothing changed
};

// Whether a value belongs to the option; nothing: it is no spelling of vLLM's. `name` has hyphens.
std::optional<bool> vllm_takes_value(std::string_view name);

// REQUIRES: vllm_takes_value(name); `value` is "" where it takes none. Errors: kUnsupported and
// kInvalidArgument, naming the option and the reason.
base::Result<Translated> translate_vllm(std::string_view name, std::string_view value);

}  // namespace apps
