#include "apps/read_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace apps {

base::Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return base::error(base::Code::kNotFound, "{}: cannot open: {}", path, std::strerror(errno));
  return read_stream(file, path, max_bytes);
}

// read() turns what the stream's buffer throws into badbit; an istreambuf_iterator would let it
// out.
base::Result<std::string> read_stream(std::istream& stream, const std::string& name,
                                      size_t max_bytes) {
  std::string text;
  char buffer[1 << 16];
  while (stream.read(buffer, sizeof buffer) || stream.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(stream.gcount()));
    if (text.size() > max_bytes) {
      return base::error(base::Code::kTooLarge, "{}: over the {} bytes that such a file may have",
                         name, max_bytes);
    }
  }
  if (stream.bad())
    return base::error(base::Code::kIo, "{}: cannot read: {}", name, std::strerror(errno));
  return text;
}

}  // namespace apps
