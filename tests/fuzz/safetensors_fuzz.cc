// Any bytes as a safetensors file: parsed, walked and matched against a small model, or refused in
// one line; never a crash or a huge allocation.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "load/huggingface.h"
#include "load/safetensors.h"

namespace {

// What the valid files of the corpus hold.
core::ModelConfig tiny_config() {
  core::ModelConfig config;
  config.num_layers = 1;
  config.model_dim = 16;
  config.ffn_dim = 16;
  config.num_q_heads = config.num_kv_heads = 1;
  config.head_dim = 16;
  config.vocab_size = 4;
  config.context_max = 64;
  config.tied_embeddings = true;
  return config;
}

void check_message(const base::Error& error) {
  CHECK(!error.message.empty());
  CHECK(error.message.find('\n') == std::string::npos, "{}", error.message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(data), size};
  auto file = load::SafetensorsFile::parse("fuzz.safetensors", bytes);
  if (!file.ok()) {
    check_message(file.error());
    return 0;
  }
  uint64_t covered = 0, total = 0;
  for (const auto& [name, tensor] : file->tensors()) {
    covered += tensor.bytes.size();
    for (std::byte b : tensor.bytes) total += std::to_integer<uint64_t>(b);
  }
  volatile uint64_t sink = total;  // keeps the reads
  (void)sink;
  CHECK(covered < size);
  load::ModelFiles model;
  model.config = tiny_config();
  std::vector<load::SafetensorsFile> files;
  files.push_back(std::move(file).value());
  auto read = load::read_hf_tensors(files, model);
  if (!read.ok()) check_message(read.error());
  return 0;
}
