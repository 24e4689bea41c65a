// Grammars of one tokenizer: from a schema, an expression or a grammar to masks of tokens, by
// XGrammar. docs/structured.md says what is enforced.
//
// Compiling takes a millisecond to seconds and belongs on a thread that may wait. What is compiled
// is kept, the most recently used first, within a bound in bytes, and shared by requests. XGrammar
// cannot be interrupted but in its parser (grammar/work_limit.h): a compilation runs on a thread of
// its own, whose caller stops waiting at the limits; the thread ends where its parser works next,
// and while kCompilationsMax of them run others wait for one. XGrammar's exceptions stop here.
// Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/ids.h"
#include "core/token_constraint.h"

namespace grammar {

struct Spec {
  enum class Kind : uint8_t {
    kJsonObject,     // any JSON object
    kJsonSchema,     // `text` is a schema as JSON
    kRegex,          // the whole output matches `text`
    kEbnf,           // `text` is a grammar in GBNF (rules `name ::= ...`), from the rule `root` on
    kChoice,         // the output is one of `choices`
    kStructuralTag,  // `text` is XGrammar's description of tags with JSON in them, as JSON
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  // kJsonSchema: properties and items that the schema does not name are not allowed, unless it says
  // that they are.
  bool closed = true;
  bool any_whitespace = true;  // JSON: else exactly `, ` and `: `
  // kStructuralTag: where its text is JSON, so that only JSON's characters may be drawn. In tags:
  // where it may not end.
  enum class Json : uint8_t { kAll, kInTags, kNone };
  Json json = Json::kAll;
};

inline constexpr size_t kTextBytesMax = 128 << 10;  // of a spec
inline constexpr size_t kChoicesMax = 1000;
inline constexpr int kNestingMax = 100;    // brackets of an expression or a grammar
inline constexpr int kWhitespaceMax = 20;  // characters between two tokens of JSON
inline constexpr int kCompilationsMax = 2;

struct GrammarsOptions {
  // The same as `bytes_of` for structural tags, which may be written with special tokens. Empty: no
  // such tokens.
  std::function<std::string_view(core::TokenId)> tag_bytes_of;
  int64_t cache_bytes = 64 << 20;   // as XGrammar counts them
  int64_t compile_us = 10'000'000;  // of the compiling thread's processor time
  int64_t wait_us = 60'000'000;     // by the clock, for one's turn and again for the compilation
};

struct ConstraintOptions {
  // Tokens that end the sequence: allowed exactly where the output is complete.
  std::vector<core::TokenId> end_tokens;
  // The end of a model's reasoning: text that comes, after whatever else, before the grammar
  // begins. "": there is none.
  std::string starts_after;
  core::TokenId closer = -1;  // the token that is this text, which has no bytes if it is special
  // With it only if the first token is this one, which begins a reasoning; -1: in any case.
  core::TokenId opener = -1;
  bool may_end_before = false;  // the sequence, while starts_after has not come
};

// A compiled grammar. Immutable.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // A new sequence's constraint. Errors: kInvalidArgument (no token of the vocabulary can begin
  // what the grammar asks for), kUnsupported (the grammar's first steps take too long).
  virtual base::Result<std::shared_ptr<core::TokenConstraint>> begin(
      ConstraintOptions options) const = 0;
};

class Grammars {
 public:
  // `bytes_of`: the bytes of a token in running text, "" of special tokens (no grammar asks for
  // them). Called for [0, vocab_size) at the first compilation; what it borrows must live as long.
  static std::unique_ptr<Grammars> create(int32_t vocab_size,
                                          std::function<std::string_view(core::TokenId)> bytes_of,
                                          const GrammarsOptions& options = {});
  virtual ~Grammars() = default;

  // Errors: kInvalidArgument (no schema, expression or grammar: what and where; or it allows
  // nothing), kUnsupported (by name), kTooLarge (over a limit above, or over the processor time),
  // kOverloaded (over wait_us: another time it may be compiled), kCancelled (by `stop`; what ran
  // for it ends too).
  virtual base::Result<std::shared_ptr<const Grammar>> compile(const Spec& spec,
                                                               const std::stop_token& stop) = 0;
  base::Result<std::shared_ptr<const Grammar>> compile(const Spec& spec) {
    return compile(spec, std::stop_token());
  }
  // What is kept of it, or null. Waits for nothing.
  virtual std::shared_ptr<const Grammar> find(const Spec& spec) = 0;

  struct Counters {
    int64_t compiled = 0, found = 0;  // in the cache
    int64_t cached_bytes = 0;
  };
  virtual Counters counters() const = 0;
};

}  // namespace grammar
