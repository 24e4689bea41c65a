// Foreign bytes in messages: one line, bounded, no control characters, whatever a hostile file
// calls its keys and tensors.
#pragma once

#include <string>
#include <string_view>

namespace load {

// `text` with every byte outside printable ASCII as \xNN, cut to 120 bytes with "..." behind.
std::string printable(std::string_view text);

}  // namespace load
