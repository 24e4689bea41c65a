// Chat templates: the Jinja subset that published models use, rendered as Hugging Face renders
// them.
//
// Immutable after parse(); render() is safe from any thread. Hostile templates are bounded: output
// bytes, loop iterations and nesting depth have limits, and exceeding one is an error, never a
// hang.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace text {

struct TemplateLimits {
  int64_t output_bytes = 64 << 20;
  int64_t loop_iterations = 4'000'000;  // of all loops together
  int32_t depth = 200;                  // nesting of expressions, blocks, macro calls and values
  int64_t memory_bytes =
      512 << 20;  // of all values alive at one time, the context and the output included
  int64_t work = 2'000'000'000;  // about a byte looked at or copied: a few seconds at the worst
};

class ChatTemplate {
 public:
  // Errors: kInvalidArgument with line number (syntax), kUnsupported naming a construct, filter,
  // test or function.
  static base::Result<ChatTemplate> parse(std::string_view source, TemplateLimits limits = {});

  // What Hugging Face passes even when it is not given must be in `context` as null (tools,
  // documents): templates ask whether they are defined. Texts must be valid UTF-8. strftime_now
  // speaks UTC.
  //
  // Renders with the variables of `context` (an object: messages, tools, add_generation_prompt,
  // bos_token, eos_token, ...). `now_unix_s` feeds strftime_now. Errors: kInvalidArgument (the
  // template called raise_exception; its message), kTooLarge (a limit).
  base::Result<std::string> render(const nlohmann::ordered_json& context, int64_t now_unix_s) const;

  const std::string& source() const;

  struct Node;
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

 private:
  ChatTemplate();
  std::unique_ptr<Node> root_;
  std::string source_;
  TemplateLimits limits_;
};

// What models without a template of their own get: ChatML.
extern const std::string_view kDefaultChatTemplate;

}  // namespace text
