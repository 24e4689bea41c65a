// A whole file as text, for the files that a person names on the command line.
#pragma once

#include <istream>
#include <string>

#include "base/result.h"

namespace apps {

// The bytes of the file at `path`, which may be a pipe. Errors: kNotFound (cannot be opened), kIo
// (cannot be read, as a folder cannot).
base::Result<std::string> read_file(const std::string& path);

// The rest of `stream`; `name` is for the message. Errors: kIo.
base::Result<std::string> read_stream(std::istream& stream, const std::string& name);

}  // namespace apps
