// What a model must write to call tools in its format, as pieces that a grammar engine can put
// together: fixed text around arguments that follow a JSON Schema.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"

namespace text {

// One function: `begin`, arguments that follow `schema`, `end`.
struct CallGrammar {
  std::string begin;
  nlohmann::ordered_json schema;  // of an object
  std::string end;
  bool strict = false;  // the tool asks for arguments that follow it, whoever decides to call
};

// Calls are one or more of `calls` with `separator` between them (exactly one call when `single`),
// `before` in front of the first and `after` behind the last.
struct ToolCallGrammar {
  // Arguments are JSON; or, of qwen3_coder, <parameter=KEY>\nVALUE\n</parameter> each.
  enum class Arguments : uint8_t { kJson, kQwenXml };
  Arguments arguments = Arguments::kJson;
  std::string before, separator, after;
  bool single = false;
  std::vector<CallGrammar> calls;  // in the order of the tools
};

// `only`: the one tool that may be called; "" = any of `tools` (OpenAI function tools). Whatever
// follows the grammar is read by the parser of `format` as calls that are complete. REQUIRES: a
// format other than kNone.
ToolCallGrammar tool_call_grammar(CallFormat format, const nlohmann::ordered_json& tools,
                                  std::string_view only, bool parallel);

// The same where the model decides whether it calls: running text, in which `marker` begins calls.
// `calls` may have several ways to write a call of one tool; each begins with the marker.
struct FreeCallGrammar {
  ToolCallGrammar::Arguments arguments = ToolCallGrammar::Arguments::kJson;
  std::string marker;
  // What begins a call for the parser as well, and is not to be written.
  std::vector<std::string> excluded;
  std::vector<CallGrammar> calls;
  std::optional<ToolCallGrammar> list;  // mistral: several calls behind one marker, its `before`
};
// Nothing: no marker tells the format's calls from text that looks like one (llama3_json).
std::optional<FreeCallGrammar> free_call_grammar(CallFormat format,
                                                 const nlohmann::ordered_json& tools);

}  // namespace text
