// Any bytes as tokenizer.json: refused with an error, or a tokenizer that encodes and decodes.
// Method: what reads and can be made must give bytes back where the vocabulary is byte-level and
// nothing rewrites or removes text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(bytes), size);
  auto data = text::read_tokenizer_json(json, {});
  if (!data.ok()) return 0;
  auto tokenizer = text::Tokenizer::create(std::move(data).value());
  if (!tokenizer.ok()) return 0;
  constexpr std::string_view kTexts[] = {"", "ab ab", "<s> x\n\n12 \xC3\xA9\xFF",
                                         "e\xCC\x81\xCC\x96  \xE2\x96\x81"};
  for (std::string_view text : kTexts) {
    for (bool parse_special : {false, true}) {
      const auto ids =
          (*tokenizer)->encode(text, {.add_special = true, .parse_special = parse_special});
      for (const core::TokenId id : ids) CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
      (*tokenizer)->decode(ids, /*skip_special=*/true);
    }
  }
  return 0;
}
