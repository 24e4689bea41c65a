// Checksums of files, as the sources of models publish them.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace hub {

// SHA-256 of a file in lower-case hex. Errors: kIo.
base::Result<std::string> sha256_of_file(const std::string& path);

// The name that git gives a file with these bytes (SHA-1 of a header and the bytes), in lower-case
// hex. It tells damage, not forgery. Errors: kIo.
base::Result<std::string> git_blob_id_of_file(const std::string& path);

}  // namespace hub
