// Filters of lists and dicts.
#pragma once

#include <string_view>

#include "text/jinja_builtins.h"

namespace text::jinja {

// Null when there is none of that name.
Builtin find_sequence_filter(std::string_view name);

}  // namespace text::jinja
