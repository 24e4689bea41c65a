// Template text to syntax tree.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "text/jinja_ast.h"

namespace text::jinja {

// Errors: kInvalidArgument (syntax) and kUnsupported (a construct, filter or test that we lack),
// both with the line; kTooLarge when nested deeper than `depth_max`. As in Jinja, a filter or test
// that does not exist is no error here when it stands under a condition: only reaching it is.
base::Result<std::unique_ptr<Program>> parse(std::string_view source, int32_t depth_max);

}  // namespace text::jinja
