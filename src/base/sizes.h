// Sizes in bytes as people write them: "24GiB", "512 MiB", "4096".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace base {

// Bytes of `text`: a decimal number, optionally with a fraction, and one of B, KiB, MiB, GiB, TiB
// (nothing means bytes). Errors: kInvalidArgument naming the text when it is anything else,
// negative or over 2^60.
Result<int64_t> parse_bytes(std::string_view text);

// "1.50 GiB", "27.9 MiB", "512 B": three significant digits.
std::string format_bytes(int64_t bytes);

}  // namespace base
