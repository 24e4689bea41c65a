// What a model wrote -> what a client gets: reasoning, content, and calls of tools.
//
// Models mark reasoning and calls by tags in their text, each family by its own. A parser reads
// that text a byte at a time, so how it is cut into pushes changes nothing: the pieces of all
// pushes and of finish(), put together, are those of one push. Nothing is lost and nothing comes
// twice: text that turns out to be no call is content, from its tag on. What is framing and comes
// out nowhere: the tags themselves, the names and punctuation around a call's name and arguments,
// line breaks next to the tags of reasoning, and white space around calls that separates them from
// content before and from each other.
//
// A call is told as soon as its arguments begin; from then on it stays one, whatever follows. If
// its text ends early, what there is of the arguments has been told, and calls_complete() is false.
// Memory: the text that is not yet certain. Time: linear. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace text {

// How calls are written. Names as people type them: none, hermes, qwen3_coder, llama3_json,
// mistral.
enum class CallFormat : uint8_t {
  kNone,
  kHermes,      // <tool_call>{"name": ..., "arguments": {...}}</tool_call>
  kQwen3Coder,  // <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
  kLlama3Json,  // {"name": ..., "parameters": {...}} from the first byte on; several with ; between
  kMistral,     // [TOOL_CALLS] [{"name": ..., "arguments": {...}}] or [TOOL_CALLS]NAME[ARGS]{...}
};

// How reasoning is written; both between <think> and </think>. none, deepseek_r1, qwen3.
enum class ReasoningFormat : uint8_t {
  kNone,
  kDeepseekR1,  // an answer begins inside, with or without the first tag
  kQwen3,       // only where the first tag begins the answer (or ended the prompt)
};

std::optional<CallFormat> call_format(std::string_view name);
std::optional<ReasoningFormat> reasoning_format(std::string_view name);
std::string_view name_of(CallFormat format);
std::string_view name_of(ReasoningFormat format);

// What a chat template's own text shows of how its model writes. A template that shows nothing of
// tools gives kNone.
CallFormat detect_call_format(std::string_view template_source);
ReasoningFormat detect_reasoning_format(std::string_view template_source);

// Tags that may be special tokens, which answers otherwise leave out: [TOOL_CALLS], <think>, ...
std::vector<std::string_view> markers_of(CallFormat calls, ReasoningFormat reasoning);

// Where the prompt left the reasoning: not begun, begun by the prompt, or over before the answer.
enum class PromptReasoning : uint8_t { kNone, kOpen, kClosed };
PromptReasoning prompt_reasoning(std::string_view prompt_end);
// The same where the answer goes on with a message of the assistant.
PromptReasoning message_reasoning(std::string_view message);

struct CallPiece {
  int32_t index = 0;      // calls count from 0
  std::string name;       // in the first piece of a call, and only there
  std::string arguments;  // JSON text to append
};

struct OutputPiece {
  std::string reasoning;
  std::string content;
  std::vector<CallPiece> calls;
};

class CallParser;
class ReasoningSplitter;

struct OutputParserOptions {
  CallFormat calls = CallFormat::kNone;
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  PromptReasoning prompt = PromptReasoning::kNone;
  // OpenAI function tools of the request, or null. Types of parameters are read from their schemas;
  // where no tag says that a call begins (llama3_json) the name must be one of theirs.
  const nlohmann::ordered_json* tools = nullptr;
};

class OutputParser {
 public:
  explicit OutputParser(const OutputParserOptions& options);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  // Adds to `out` what `text` makes certain.
  void push(std::string_view text, OutputPiece& out);
  // The end of the text: what was held back. Call once.
  void finish(OutputPiece& out);

  int32_t calls_begun() const;
  int32_t calls_ended() const;
  // Every call that was begun has ended, and its arguments are JSON.
  bool calls_complete() const;

 private:
  void push_rest(std::string_view text, OutputPiece& out);

  std::unique_ptr<ReasoningSplitter> reasoning_;  // null: none
  std::unique_ptr<CallParser> calls_;             // null: none
};

}  // namespace text
