// Any text as each JSON file of a Hugging Face folder: read, or refused in one line; never a crash
// or a huge allocation.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "load/describe.h"
#include "load/hf_config.h"
#include "load/huggingface.h"

namespace {

void check_message(const base::Error& error) {
  CHECK(!error.message.empty());
  CHECK(error.message.find('\n') == std::string::npos, "{}", error.message);
}

void check_tokenizer(load::HfTexts texts) {
  load::ModelFiles model;
  auto read = load::read_hf_tokenizer("fuzz", std::move(texts), model);
  if (!read.ok()) check_message(read.error());
  CHECK(!load::describe(model).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = base::set_log_level("off").ok();
  CHECK(quiet);
  const std::string text(reinterpret_cast<const char*>(data), size);
  auto config = load::read_hf_config("config.json", text);
  if (!config.ok()) check_message(config.error());
  load::HfTexts tokenizer_config, generation_config;
  tokenizer_config.tokenizer_config = text;
  generation_config.generation_config = text;
  check_tokenizer(std::move(tokenizer_config));
  check_tokenizer(std::move(generation_config));
  return 0;
}
