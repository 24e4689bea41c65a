// Any bytes as a chat template, rendered with one conversation: a text within the limits or an
// error, never a crash, a leak, a hang or a huge allocation. Two renderings must agree.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "text/chat_template.h"

namespace {

const nlohmann::ordered_json& conversation() {
  static const auto context = nlohmann::ordered_json::parse(R"({
    "messages": [
      {"role": "system", "content": "Be terse."},
      {"role": "user", "content": "Grüße 👋\n 'x' \"y\" <b>"},
      {"role": "assistant", "content": null, "reasoning_content": "hm",
       "tool_calls": [{"id": "call00001", "type": "function",
                       "function": {"name": "f", "arguments": {"a": 1, "b": [true, null, 2.5]}}}]},
      {"role": "tool", "content": "42", "tool_call_id": "call00001"},
      {"role": "user", "content": [{"type": "text", "text": "part"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d",
      "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}],
    "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
    "n": 7, "f": 2.5, "s": "Hello Wörld", "l": [3, 1, 2], "d": {"one": 1, "two": [2, "x"]},
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}]}]})");
  return context;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  text::TemplateLimits limits;
  limits.output_bytes = 1 << 16;
  limits.memory_bytes = 4 << 20;
  limits.loop_iterations = 5'000;
  limits.work = 20'000'000;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto chat = text::ChatTemplate::parse(source, limits);
  if (!chat.ok()) {
    CHECK(!chat.error().message.empty());
    return 0;
  }
  const auto first = chat->render(conversation(), 1'733'000'000);
  const auto second = chat->render(conversation(), 1'733'000'000);
  CHECK(first.ok() == second.ok());
  if (!first.ok()) {
    CHECK(first.error().code != base::Code::kInternal, "{}", first.error().message);
    return 0;
  }
  CHECK(*first == *second);
  CHECK(static_cast<int64_t>(first->size()) <= limits.output_bytes);
  return 0;
}
