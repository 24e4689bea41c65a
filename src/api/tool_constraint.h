// What tool_choice required, or a named tool, makes of an output: calls and nothing else.
#pragma once

#include "grammar/grammars.h"
#include "text/tool_grammar.h"

namespace api {

// `calls` as a grammar whose arguments follow their tools' schemas.
grammar::Spec tool_call_spec(const text::ToolCallGrammar& calls);

}  // namespace api
