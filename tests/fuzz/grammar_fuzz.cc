// Schemas, expressions, grammars and choices from anyone: the first byte says which and how, the
// rest is the text. Whatever it is, it is refused with a reason or begins sequences; then allowed
// tokens chosen by the text itself are taken, and an output that ends as JSON must parse.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "grammar/grammars.h"

namespace {

using core::TokenConstraint;

constexpr core::TokenId kEnd = 256;
constexpr int kTokensMax = 100;

std::string_view bytes_of(core::TokenId id) {
  static const std::string all = [] {
    std::string bytes(256, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
    return bytes;
  }();
  return id < kEnd ? std::string_view(all).substr(static_cast<size_t>(id), 1) : "";
}

void require(bool condition) {
  if (!condition) std::abort();
}

// What the parser refuses beyond the standard: numbers that no double holds, halves of surrogate
// pairs.
std::string tame(const std::string& json) {
  std::string out;
  int exponent_digits = -1;
  for (const char c : json) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && exponent_digits >= 0 && ++exponent_digits > 2) continue;
    if (c == 'e' || c == 'E') exponent_digits = 0;
    if (!digit && c != 'e' && c != 'E' && c != '+' && c != '-') exponent_digits = -1;
    const bool escape =
        out.size() >= 2 && out[out.size() - 1] == 'u' && out[out.size() - 2] == '\\';
    out += escape && (c == 'd' || c == 'D') ? '0' : c;
  }
  return out;
}

// The allowed token that the byte chooses.
core::TokenId choose(std::span<const uint32_t> mask, uint8_t byte) {
  core::TokenId allowed[kEnd + 1];
  size_t count = 0;
  for (core::TokenId id = 0; id <= kEnd; ++id) {
    if (core::allows(mask, id)) allowed[count++] = id;
  }
  require(count > 0);
  return allowed[byte % count];
}

void walk(TokenConstraint& constraint, bool is_json, const uint8_t* data, size_t size) {
  std::string output;
  for (int i = 0; i < kTokensMax; ++i) {
    const auto at = static_cast<size_t>(i);
    const core::TokenId token = choose(
        constraint.mask(), size == 0 ? uint8_t{0} : static_cast<uint8_t>(data[at % size] + i));
    output += bytes_of(token);
    const auto next = constraint.accept(token);
    if (next == TokenConstraint::Next::kFault) return require(!constraint.fault().empty());
    if (next == TokenConstraint::Next::kGoesOn) continue;
    require(!is_json || nlohmann::json::accept(tame(output)));
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Kind = grammar::Spec::Kind;
  if (size == 0) return 0;
  static const auto grammars = grammar::Grammars::create(
      kEnd + 1, bytes_of, {.cache_bytes = 1 << 20, .compile_us = 20'000'000});
  constexpr Kind kKinds[] = {Kind::kJsonSchema, Kind::kRegex, Kind::kEbnf, Kind::kChoice,
                             Kind::kStructuralTag};
  grammar::Spec spec{.kind = kKinds[data[0] % 5],
                     .text = std::string(reinterpret_cast<const char*>(data) + 1, size - 1),
                     .closed = (data[0] & 0x40) == 0,
                     .any_whitespace = (data[0] & 0x80) == 0};
  if (spec.kind == Kind::kChoice) spec.choices = {std::exchange(spec.text, ""), "b"};
  const auto made = grammars->compile(spec);
  if (!made.ok()) {
    require(!made.error().message.empty());
    return 0;
  }
  auto constraint = made.value()->begin({.end_tokens = {kEnd}});
  if (!constraint.ok()) {
    require(!constraint.error().message.empty());
    return 0;
  }
  walk(*constraint.value(), spec.kind == Kind::kJsonSchema, data, size);
  return 0;
}
