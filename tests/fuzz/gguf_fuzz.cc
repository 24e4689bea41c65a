// Any bytes as a GGUF file: read whole, walked and described, or refused in one line; never a crash
// or a huge allocation.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "load/describe.h"
#include "load/gguf_model.h"

namespace {

// Touches every byte that the reader vouches for.
uint64_t sum(std::span<const std::byte> bytes) {
  uint64_t total = 0;
  for (std::byte b : bytes) total += std::to_integer<uint64_t>(b);
  return total;
}

void walk(const load::GgufFile& gguf) {
  uint64_t total = 0;
  for (const auto& [name, tensor] : gguf.tensors()) total += sum(tensor.bytes);
  for (const auto& [key, value] : gguf.metadata()) {
    total += sum(value.bytes);
    if (auto strings = gguf.strings(key); strings.ok()) CHECK(strings->size() == value.count);
    if (auto floats = gguf.floats(key); floats.ok()) CHECK(floats->size() == value.count);
    if (auto ints = gguf.int32s(key); ints.ok()) CHECK(ints->size() == value.count);
    for (bool ok : {gguf.integer(key).ok(), gguf.number(key).ok(), gguf.boolean(key).ok(),
                    gguf.string(key).ok()}) {
      total += ok;
    }
  }
  volatile uint64_t sink = total;  // keeps the reads
  (void)sink;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(data), size};
  auto gguf = load::GgufFile::parse("fuzz.gguf", bytes);
  if (gguf.ok()) walk(*gguf);
  auto model = load::read_gguf_model("fuzz.gguf", bytes);
  if (!model.ok()) {
    CHECK(!model.error().message.empty());
    CHECK(model.error().message.find('\n') == std::string::npos, "{}", model.error().message);
    return 0;
  }
  CHECK(gguf.ok());
  CHECK(!load::describe(**model).empty());
  const core::TokenizerData& tokenizer = (*model)->tokenizer;
  if ((*model)->has_tokenizer) {
    CHECK(tokenizer.tokens.size() == static_cast<size_t>((*model)->config.vocab_size));
  }
  return 0;
}
