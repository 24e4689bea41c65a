// What a sequence's output must look like, as the engine sees it: after each token, which ones may
// come next. src/grammar makes them of schemas, expressions and grammars.
//
// The engine's thread calls accept() when it commits a token. The mask is then that of the next
// position, and stays where it is: a plan made before the token was known (sched/scheduler.h,
// ahead) borrows the same words, which hold the new mask by the time the plan is handed over. A
// fault is the request's own: it ends with an error. A constraint belongs to one sequence. Not
// bound by the rule that a steady step allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/ids.h"

namespace core {

class TokenConstraint {
 public:
  enum class Next : uint8_t {
    kGoesOn,   // mask() says how
    kMustEnd,  // the output is complete, and nothing may follow
    kFault,    // fault() says what is wrong: the token was not allowed, or took too long
  };

  virtual ~TokenConstraint() = default;

  // Bit t % 32 of word t / 32: token t may come next. (ceil(V / 32)), at least one bit set unless
  // accept() has said otherwise. Tokens that end a sequence are allowed exactly where the output is
  // complete. The span is the same for the constraint's life.
  virtual std::span<const uint32_t> mask() const = 0;

  // The next token of the output, a drawn one.
  virtual Next accept(TokenId token) = 0;

  virtual const std::string& fault() const = 0;  // a line for people
};

inline bool allows(std::span<const uint32_t> mask, TokenId token) {
  const auto id = static_cast<uint32_t>(token);
  return (mask[id / 32] >> (id % 32) & 1) != 0;
}
inline int64_t mask_words(int64_t vocab_size) {
  return (vocab_size + 31) / 32;
}

}  // namespace core
