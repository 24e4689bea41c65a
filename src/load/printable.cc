#include "load/printable.h"

#include <fmt/format.h>

namespace load {

std::string printable(std::string_view text) {
  constexpr size_t kBytesMax = 120;
  std::string out;
  for (char c : text.substr(0, kBytesMax)) {
    if (c >= 0x20 && c < 0x7F) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > kBytesMax) out += "...";
  return out;
}

}  // namespace load
