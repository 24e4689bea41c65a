// Sizes on the command line, whose errors name the option.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "base/sizes.h"

namespace apps {

// Bytes of an option's value. Errors: kInvalidArgument.
inline base::Result<int64_t> parse_size_option(std::string_view option, std::string_view value) {
  base::Result<int64_t> bytes = base::parse_bytes(value);
  if (bytes.ok()) return bytes;
  return base::error(bytes.error().code, "{}: {}", option, bytes.error().message);
}

}  // namespace apps
