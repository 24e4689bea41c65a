// What tools make of an output. tool_choice required, or a named tool: calls and nothing else.
// auto, with tools that are strict: running text with calls in it.
#pragma once

#include <optional>

#include "grammar/grammars.h"
#include "text/tool_grammar.h"

namespace api {

// `calls` as a grammar whose arguments follow their tools' schemas.
grammar::Spec tool_call_spec(const text::ToolCallGrammar& calls);
// Either calls, whose arguments follow their schemas where the tools are strict, or what `json`
// asks for. Nothing: its text is no schema that is an object. REQUIRES: a kJsonObject, or a closed
// kJsonSchema.
std::optional<grammar::Spec> call_or_json_spec(const text::ToolCallGrammar& calls,
                                               const grammar::Spec& json);
// Those of strict tools do, others' are JSON objects. Only the tools can be called.
grammar::Spec free_call_spec(const text::FreeCallGrammar& calls);

}  // namespace api
