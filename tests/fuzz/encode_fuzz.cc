// Any bytes as text: longneedle's tokenizer gives them back, and the detokenizer's pieces are the
// replacement-decoding of the whole. The first byte chooses the options.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

const text::Tokenizer& tokenizer() {
  static const std::unique_ptr<text::Tokenizer> made = [] {
    std::ifstream in(SPILLWAY_SOURCE_DIR "/models/longneedle/tokenizer.json");
    std::stringstream file;
    file << in.rdbuf();
    auto data = text::read_tokenizer_json(file.str(), {});
    return std::move(text::Tokenizer::create(std::move(data).value())).value();
  }();
  return *made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const bool parse_special = (bytes[0] & 1) != 0;
  const auto ids =
      tokenizer().encode(input, {.add_special = false, .parse_special = parse_special});
  CHECK(tokenizer().decode(ids, /*skip_special=*/false) == input);
  if (!parse_special) {
    for (const core::TokenId id : ids) CHECK(!tokenizer().is_special(id));
  }
  std::string whole, pieces;
  text::append_replaced(whole, input, /*at_end=*/true);
  text::Detokenizer detokenizer(tokenizer(), /*skip_special=*/false);
  for (const core::TokenId id : ids) pieces += detokenizer.push(id);
  pieces += detokenizer.finish();
  CHECK(pieces == whole);
  return 0;
}
