#include "grammar/compile.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "grammar/library_log.h"
#include "grammar/schema_check.h"
#include "grammar/work_limit.h"

namespace grammar {
namespace {

using base::Code;
using base::error;
using nlohmann::ordered_json;

constexpr const char* kAnyObject = R"({"type":"object"})";
// Deeper recursion than checked texts need is refused by the library before the stack ends.
constexpr int kRecursionMax = 1000;

base::Result<ordered_json> read_json(const Spec& spec, const char* what) {
  // Two brackets a subschema: its own and that of the keyword it stands in.
  if (json_depth(spec.text) > 2 * kSchemaDepthMax + 2) {
    return error(Code::kTooLarge, "the {} nests more than {} deep", what, kSchemaDepthMax);
  }
  ordered_json parsed = ordered_json::parse(spec.text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return error(Code::kInvalidArgument, "the {} is not JSON", what);
  return parsed;
}

// Brackets inside each other, whatever they mean: never less than what a parser recurses into.
int nesting(std::string_view text) {
  int depth = 0, deepest = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '(' || text[i] == '[' || text[i] == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (text[i] == ')' || text[i] == ']' || text[i] == '}') {
      depth = std::max(0, depth - 1);
    }
  }
  return deepest;
}

// The largest number in `{m,n}`: copies of what stands before it.
int64_t repetitions(std::string_view text) {
  int64_t most = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{') continue;
    int64_t number = 0;
    for (size_t j = i + 1; j < text.size() && text[j] != '}'; ++j) {
      const bool digit = text[j] >= '0' && text[j] <= '9';
      number = digit ? std::min<int64_t>(number * 10 + (text[j] - '0'), INT32_MAX) : 0;
      most = std::max(most, number);
    }
  }
  return most;
}

base::Result<void> check_text(const Spec& spec, const char* what) {
  if (spec.text.empty()) return error(Code::kInvalidArgument, "the {} is empty", what);
  RETURN_IF_ERROR(check_escapes(spec.text));
  if (nesting(spec.text) > kNestingMax) {
    return error(Code::kTooLarge, "the {} nests more than {} deep", what, kNestingMax);
  }
  if (repetitions(spec.text) > kCountMax)
    return error(Code::kTooLarge, "the {} repeats something more than {} times", what, kCountMax);
  return {};
}

base::Result<void> check_choices(const Spec& spec) {
  if (spec.choices.empty()) return error(Code::kInvalidArgument, "there is nothing to choose from");
  if (spec.choices.size() > kChoicesMax)
    return error(Code::kTooLarge, "there are {} choices, at most {} are taken", spec.choices.size(),
                 kChoicesMax);
  for (const std::string& choice : spec.choices) {
    if (choice.empty()) return error(Code::kInvalidArgument, "a choice is empty");
  }
  return {};
}

// Of a structural tag: those of its parts, wherever they are.
base::Result<void> check_schemas_in(const ordered_json& tag) {
  if (tag.is_object() && tag.contains("json_schema"))
    RETURN_IF_ERROR(check_schema(tag["json_schema"]));
  for (const auto& [name, value] : tag.items()) {
    if (value.is_string())  // some are expressions and grammars
      RETURN_IF_ERROR(check_escapes(value.get_ref<const std::string&>()));
    if (value.is_structured() && name != "json_schema") RETURN_IF_ERROR(check_schemas_in(value));
  }
  return {};
}

// Every byte that is not plain as an escape.
std::string choices_grammar(const Spec& spec) {
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < spec.choices.size(); ++i) {
    grammar += i == 0 ? "\"" : " | \"";
    for (const char c : spec.choices[i]) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        grammar += '\\';
        grammar += c;
      } else if (byte < 0x20 || byte == 0x7f) {
        // Not \x, whose digits the library takes as far as they go.
        grammar += fmt::format("\\u{:04x}", byte);
      } else {
        grammar += c;
      }
    }
    grammar += '"';
  }
  return grammar;
}

xgrammar::CompiledGrammar compile_schema(xgrammar::GrammarCompiler& compiler,
                                         const std::string& schema, const Spec& spec, bool closed) {
  return compiler.CompileJSONSchema(schema, spec.any_whitespace, std::nullopt, std::nullopt, closed,
                                    kWhitespaceMax);
}

xgrammar::CompiledGrammar call_library(xgrammar::GrammarCompiler& compiler, const Spec& spec) {
  switch (spec.kind) {
    case Spec::Kind::kJsonObject:
      return compile_schema(compiler, kAnyObject, spec, /*closed=*/false);
    case Spec::Kind::kJsonSchema:
      return compile_schema(compiler, spec.text, spec, spec.closed);
    case Spec::Kind::kRegex:
      return compiler.CompileRegex(spec.text);
    case Spec::Kind::kEbnf:
      return compiler.CompileGrammar(spec.text);
    case Spec::Kind::kChoice:
      return compiler.CompileGrammar(choices_grammar(spec));
    case Spec::Kind::kStructuralTag:
      break;
  }
  return compiler.CompileStructuralTag(spec.text);
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

Spec::Json json_of(const Spec& spec) {
  switch (spec.kind) {
    case Spec::Kind::kJsonObject:
    case Spec::Kind::kJsonSchema:
      return Spec::Json::kAll;
    case Spec::Kind::kStructuralTag:
      return spec.json;
    case Spec::Kind::kRegex:
    case Spec::Kind::kEbnf:
    case Spec::Kind::kChoice:
      break;
  }
  return Spec::Json::kNone;
}

base::Result<void> check_spec(const Spec& spec) {
  size_t bytes = spec.text.size();
  for (const std::string& choice : spec.choices) bytes += choice.size();
  if (bytes > kTextBytesMax) {
    return error(Code::kTooLarge, "it has {} bytes, at most {} are taken", bytes, kTextBytesMax);
  }
  switch (spec.kind) {
    case Spec::Kind::kJsonObject:
      return {};
    case Spec::Kind::kJsonSchema: {
      ASSIGN_OR_RETURN(const ordered_json schema, read_json(spec, "schema"));
      return check_schema(schema);
    }
    case Spec::Kind::kRegex:
      return check_text(spec, "expression");
    case Spec::Kind::kEbnf:
      return check_text(spec, "grammar");
    case Spec::Kind::kChoice:
      return check_choices(spec);
    case Spec::Kind::kStructuralTag:
      break;
  }
  ASSIGN_OR_RETURN(const ordered_json tag, read_json(spec, "structural tag"));
  return check_schemas_in(tag);
}

base::Result<xgrammar::CompiledGrammar> compile_spec(xgrammar::GrammarCompiler& compiler,
                                                     const Spec& spec) {
  xgrammar::SetMaxRecursionDepth(kRecursionMax);
  const Warnings warnings;
  try {
    xgrammar::CompiledGrammar compiled = call_library(compiler, spec);
    if (!warnings.lines().empty()) {
      return error(Code::kUnsupported, "{}", first_line(warnings.lines().front()));
    }
    return compiled;
  } catch (const WorkLimitReached&) {
    throw;  // how long it may take, the caller knows
  } catch (const std::exception& exception) {
    const std::string why = first_line(exception.what());
    // Parts of expressions that mean something, but not to this library.
    const bool is_known = why.find("is not supported") != why.npos;
    return error(is_known ? Code::kUnsupported : Code::kInvalidArgument, "{}", why);
  }
}

}  // namespace grammar
