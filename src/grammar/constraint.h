// One sequence's way through a compiled grammar: XGrammar's matcher behind core::TokenConstraint.
//
// Memory grows with the output, by some hundred bytes a token. A token whose mask takes more than
// kStepCpuUs of the engine thread's time ends its request, in the middle of it: grammars that are
// that ambiguous must not stop the others. Thread: one at a time.
#pragma once

#include <xgrammar/xgrammar.h>

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/token_constraint.h"
#include "grammar/grammars.h"

namespace grammar {

inline constexpr int64_t kStepCpuUs = 200'000;

// What all grammars of a tokenizer share.
struct Vocabulary {
  int32_t size = 0;
  xgrammar::TokenizerInfo tokens;  // their bytes, "" of special ones
  // (ceil(V / 32)) Tokens that go on with a character whose first byte is 0xED, without making a
  // surrogate of it: XGrammar's classes of characters have those, UTF-8 has not.
  std::vector<uint32_t> after_ed;
  // (ceil(V / 32)) Tokens without surrogates, and without control characters but line feeds: JSON
  // has them nowhere else than in white space, and XGrammar lets them into strings of bounded
  // length.
  std::vector<uint32_t> json_tokens;
};

class Constraint final : public core::TokenConstraint {
 public:
  // `json`: where only Vocabulary::json_tokens may be. Errors: those of Grammar::begin.
  static base::Result<std::shared_ptr<core::TokenConstraint>> create(
      const xgrammar::CompiledGrammar& grammar, std::shared_ptr<const Vocabulary> vocabulary,
      Spec::Json json, ConstraintOptions options);

  std::span<const uint32_t> mask() const override { return mask_; }
  Next accept(core::TokenId token) override;
  const std::string& fault() const override { return fault_; }

 private:
  Constraint(const xgrammar::CompiledGrammar& grammar, std::shared_ptr<const Vocabulary> vocabulary,
             Spec::Json json, ConstraintOptions options);
  Next step(core::TokenId token);
  Next wait_for_start(core::TokenId token);
  Next fill();
  Next allow_all();
  void allow_opener();
  Next fail(std::string why);
  bool is_end(core::TokenId token) const;
  void set_ends(bool allowed);

  std::shared_ptr<const Vocabulary> vocabulary_;
  const Spec::Json json_;
  const ConstraintOptions options_;
  xgrammar::GrammarMatcher matcher_;
  std::vector<uint32_t> mask_;
  bool is_first_ = true;    // no token has come
  bool waits_ = false;      // for starts_after
  bool after_ed_ = false;   // the output ends with the byte 0xED
  bool completed_ = false;  // the output may end here
  std::string seen_;        // while it waits: the last bytes of the output
  std::string fault_;
};

}  // namespace grammar
