// A whole file as text, for the files that a person names on the command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>

#include "base/result.h"

namespace apps {

// The bytes of the file at `path`, which may be a pipe. Errors: kNotFound (cannot be opened), kIo
// (cannot be read, as a folder cannot), kTooLarge: over `max_bytes`, of which no more are read.
base::Result<std::string> read_file(const std::string& path, size_t max_bytes = SIZE_MAX);

// The rest of `stream`; `name` is for the message. Errors: kIo, kTooLarge.
base::Result<std::string> read_stream(std::istream& stream, const std::string& name,
                                      size_t max_bytes = SIZE_MAX);

}  // namespace apps
