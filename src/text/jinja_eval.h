// Runs a parsed template.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "text/chat_template.h"
#include "text/jinja_ast.h"

namespace text::jinja {

base::Result<std::string> evaluate(const Program& program, const nlohmann::ordered_json& context,
                                   int64_t now_unix_s, const TemplateLimits& limits);

}  // namespace text::jinja
