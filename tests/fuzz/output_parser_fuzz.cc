// What a model wrote, which may be anything: the first byte chooses formats, the second where the
// text is cut, the rest is the text. However it is cut, the pieces put together are the same, they
// are no longer than escapes make the text, and a text without tags comes out as it is.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/output_parser.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

const nlohmann::ordered_json& tools() {
  static const auto value = nlohmann::ordered_json::parse(
      R"([{"function":{"name":"f","parameters":{"properties":{"s":{"type":"string"},
      "i":{"type":["integer","null"]},"o":{"anyOf":[{"type":"object"},{"$ref":"#"}]}}}}},
      {"function":{"name":"g"}}])");
  return value;
}

struct Outcome {
  std::string reasoning, content;
  std::string calls;
  bool complete = true;
  bool operator==(const Outcome&) const = default;
};

void add(const text::OutputPiece& piece, Outcome& outcome, int32_t& begun) {
  outcome.reasoning += piece.reasoning;
  outcome.content += piece.content;
  for (const text::CallPiece& call : piece.calls) {
    if (call.index == begun) {
      require(!call.name.empty());
      ++begun;
      outcome.calls += '\0' + call.name + '\0';
    } else {
      require(call.index + 1 == begun && call.name.empty());
    }
    outcome.calls += call.arguments;
  }
}

Outcome read(const text::OutputParserOptions& options, std::string_view text, size_t piece_bytes) {
  text::OutputParser parser(options);
  Outcome outcome;
  int32_t begun = 0;
  while (!text.empty()) {
    text::OutputPiece piece;
    parser.push(text.substr(0, piece_bytes), piece);
    add(piece, outcome, begun);
    text.remove_prefix(std::min(piece_bytes, text.size()));
  }
  text::OutputPiece piece;
  parser.finish(piece);
  add(piece, outcome, begun);
  outcome.complete = parser.calls_complete();
  require(parser.calls_begun() == begun && parser.calls_ended() <= begun);
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  text::OutputParserOptions options;
  options.calls = static_cast<text::CallFormat>(data[0] % 5);
  options.reasoning = static_cast<text::ReasoningFormat>(data[0] / 5 % 3);
  options.prompt = static_cast<text::PromptReasoning>(data[0] / 15 % 3);
  options.tools = data[0] / 45 % 2 == 0 ? &tools() : nullptr;
  const Outcome whole = read(options, text, SIZE_MAX);
  require(read(options, text, 1) == whole);
  require(read(options, text, 1 + data[1]) == whole);
  require(whole.reasoning.size() + whole.content.size() + whole.calls.size() <= 8 * size + 8);
  if (text.find_first_of("<[{\n ") == std::string_view::npos)
    require(whole.reasoning + whole.content == text);
  return 0;
}
