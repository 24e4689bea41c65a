// One compilation: checks what XGrammar would pass over, then calls it. Private to grammars.cc.
#pragma once

#include <xgrammar/xgrammar.h>

#include "base/result.h"
#include "grammar/grammars.h"

namespace grammar {

// Where the output is JSON, so that Vocabulary::json_tokens apply.
Spec::Json json_of(const Spec& spec);

// What can be told at once: sizes, nesting, what is not enforced. Errors: those of
// Grammars::compile.
base::Result<void> check_spec(const Spec& spec);

// REQUIRES: check_spec(spec). Errors: kInvalidArgument, kUnsupported.
base::Result<xgrammar::CompiledGrammar> compile_spec(xgrammar::GrammarCompiler& compiler,
                                                     const Spec& spec);

}  // namespace grammar
