// What of JSON Schema (2020-12) can be enforced while tokens are drawn; the rest is refused by
// name.
//
// XGrammar takes one group of keywords of a schema ($ref, const, enum, anyOf, oneOf, allOf, or the
// type's own) and passes over the others in silence. Here a schema is walked, through its
// references, and refused where something that asserts would be passed over. What the library
// itself warns about (multipleOf of numbers, alternatives of oneOf that may overlap, ...) comes
// from compiler.cc. Annotations, unknown keywords and unknown formats assert nothing. Thread: any.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace grammar {

inline constexpr int kSchemaDepthMax = 32;    // subschemas inside each other
inline constexpr int kSchemaNodesMax = 5000;  // subschemas, each once
// minItems, maxLength and the like: each adds states to what is compiled.
inline constexpr int64_t kCountMax = 100'000;

// Errors: kUnsupported (a keyword that is not enforced, named with its place), kInvalidArgument (no
// schema; a reference to nothing), kTooLarge (beyond the limits above).
base::Result<void> check_schema(const nlohmann::ordered_json& schema);

// Of an expression or a grammar: its escapes name characters. The library reads any number of
// digits behind `\x` as one number, where everybody else reads two, and overflows. Errors:
// kUnsupported.
base::Result<void> check_escapes(std::string_view text);

// Brackets inside each other, those in strings left out: bounds the work of parsers that recurse.
int json_depth(std::string_view json);

// Whether what the expression matches is for certain free of what JSON escapes: quotes,
// backslashes, control characters. XGrammar matches a `pattern` against the string as JSON writes
// it. Where it makes an automaton of the expression it leaves these characters out; where it
// cannot, it asks this (cmake/plain_json_patterns.cmake) and warns. Of an expression that is none:
// anything.
bool is_plain_in_json(std::string_view expression);

}  // namespace grammar
