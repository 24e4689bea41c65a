#include "text/output_parser.h"

#include <array>
#include <utility>

#include "text/call_parser.h"

namespace text {
namespace {

constexpr std::string_view kThinkTag = "<think>";
constexpr std::string_view kThinkEndTag = "</think>";

template <typename Format>
struct Named {
  std::string_view name;
  Format format;
};
constexpr std::array<Named<CallFormat>, 5> kCallFormats = {
    {{"none", CallFormat::kNone},
     {"hermes", CallFormat::kHermes},
     {"qwen3_coder", CallFormat::kQwen3Coder},
     {"llama3_json", CallFormat::kLlama3Json},
     {"mistral", CallFormat::kMistral}}};
constexpr std::array<Named<ReasoningFormat>, 3> kReasoningFormats = {
    {{"none", ReasoningFormat::kNone},
     {"deepseek_r1", ReasoningFormat::kDeepseekR1},
     {"qwen3", ReasoningFormat::kQwen3}}};

template <typename Table>
auto find_format(const Table& table, std::string_view name)
    -> std::optional<decltype(table[0].format)> {
  for (const auto& entry : table) {
    if (entry.name == name) return entry.format;
  }
  return std::nullopt;
}

template <typename Table, typename Format>
std::string_view find_name(const Table& table, Format format) {
  for (const auto& entry : table) {
    if (entry.format == format) return entry.name;
  }
  return {};
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string_view without_spaces_at_end(std::string_view text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::optional<CallFormat> call_format(std::string_view name) {
  return find_format(kCallFormats, name);
}
std::optional<ReasoningFormat> reasoning_format(std::string_view name) {
  return find_format(kReasoningFormats, name);
}
std::string_view name_of(CallFormat format) {
  return find_name(kCallFormats, format);
}
std::string_view name_of(ReasoningFormat format) {
  return find_name(kReasoningFormats, format);
}

CallFormat detect_call_format(std::string_view source) {
  if (!has(source, "tool")) return CallFormat::kNone;
  if (has(source, "[TOOL_CALLS]")) return CallFormat::kMistral;
  if (has(source, "<function=") && has(source, "<parameter=")) return CallFormat::kQwen3Coder;
  if (has(source, "<tool_call>")) return CallFormat::kHermes;
  if (has(source, "\"parameters\": ") && (has(source, "ipython") || has(source, "<|python_tag|>")))
    return CallFormat::kLlama3Json;
  return CallFormat::kNone;
}

ReasoningFormat detect_reasoning_format(std::string_view source) {
  if (!has(source, kThinkEndTag)) return ReasoningFormat::kNone;
  return has(source, "<\uFF5CAssistant\uFF5C>") ? ReasoningFormat::kDeepseekR1
                                                : ReasoningFormat::kQwen3;
}

std::vector<std::string_view> markers_of(CallFormat calls, ReasoningFormat reasoning) {
  std::vector<std::string_view> markers;
  if (reasoning != ReasoningFormat::kNone) markers = {kThinkTag, kThinkEndTag};
  const auto add = [&](std::initializer_list<std::string_view> more) {
    markers.insert(markers.end(), more);
  };
  switch (calls) {
    case CallFormat::kNone:
      break;
    case CallFormat::kHermes:
    case CallFormat::kQwen3Coder:
      add({"<tool_call>", "</tool_call>"});
      break;
    case CallFormat::kLlama3Json:
      add({"<|python_tag|>"});
      break;
    case CallFormat::kMistral:
      add({"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"});
      break;
  }
  return markers;
}

PromptReasoning prompt_reasoning(std::string_view prompt_end) {
  const std::string_view text = without_spaces_at_end(prompt_end);
  if (text.ends_with(kThinkTag)) return PromptReasoning::kOpen;
  if (text.ends_with(kThinkEndTag)) return PromptReasoning::kClosed;
  return PromptReasoning::kNone;
}

PromptReasoning message_reasoning(std::string_view message) {
  const size_t begin = message.rfind(kThinkTag), end = message.rfind(kThinkEndTag);
  const bool open =
      begin != std::string_view::npos && (end == std::string_view::npos || end < begin);
  return open ? PromptReasoning::kOpen : PromptReasoning::kClosed;
}

// Splits the text into reasoning and the rest, which goes on to `rest`.
class ReasoningSplitter {
 public:
  ReasoningSplitter(ReasoningFormat format, PromptReasoning prompt)
      : always_(format == ReasoningFormat::kDeepseekR1 || prompt == PromptReasoning::kOpen) {
    if (prompt == PromptReasoning::kClosed) state_ = State::kBehind;
  }

  // `rest` gets what is no reasoning.
  void step(char c, std::string& reasoning, std::string& rest) {
    switch (state_) {
      case State::kStart:
        return start(c, reasoning, rest);
      case State::kInside:
        return inside(c, reasoning);
      case State::kBehind:
        if (c == '\n') return;
        state_ = State::kRest;
        [[fallthrough]];
      case State::kRest:
        rest += c;
    }
  }

  void finish(std::string& reasoning, std::string& rest) {
    if (state_ == State::kStart) (always_ ? reasoning : rest) += held_ + begin_.take();
    if (state_ == State::kInside) reasoning += held_ + end_.take();
    held_.clear();
  }

 private:
  enum class State : uint8_t { kStart, kInside, kBehind, kRest };

  void start(char c, std::string& reasoning, std::string& rest) {
    std::string text;
    const bool found = begin_.step(c, text) >= 0;
    held_ += text;
    if (found) {
      held_.clear();
      state_ = State::kInside;
    } else if (!without_spaces_at_end(text).empty()) {
      std::string all = std::exchange(held_, {}) + begin_.take();
      state_ = always_ ? State::kInside : State::kRest;
      for (const char byte : all) step(byte, reasoning, rest);
    }
  }

  void inside(char c, std::string& reasoning) {
    std::string text;
    const bool found = end_.step(c, text) >= 0;
    for (const char byte : text) {
      if (byte == '\n') {  // next to the tags it is framing
        if (begun_) held_ += byte;
        continue;
      }
      begun_ = true;
      reasoning += std::exchange(held_, {});
      reasoning += byte;
    }
    if (!found) return;
    held_.clear();
    state_ = State::kBehind;
  }

  bool always_;
  State state_ = State::kStart;
  bool begun_ = false;
  std::string held_;
  MarkerMatcher begin_{{kThinkTag}};
  MarkerMatcher end_{{kThinkEndTag}};
};

OutputParser::OutputParser(const OutputParserOptions& options) {
  if (options.reasoning != ReasoningFormat::kNone)
    reasoning_ = std::make_unique<ReasoningSplitter>(options.reasoning, options.prompt);
  switch (options.calls) {
    case CallFormat::kNone:
      break;
    case CallFormat::kHermes:
      calls_ = make_hermes_parser();
      break;
    case CallFormat::kQwen3Coder:
      calls_ = make_qwen3_coder_parser(options.tools);
      break;
    case CallFormat::kLlama3Json:
      calls_ = make_llama3_json_parser(options.tools);
      break;
    case CallFormat::kMistral:
      calls_ = make_mistral_parser();
      break;
  }
}

OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

void OutputParser::push(std::string_view text, OutputPiece& out) {
  std::string rest;
  if (reasoning_) {
    for (const char c : text) reasoning_->step(c, out.reasoning, rest);
    text = rest;
  }
  push_rest(text, out);
}

void OutputParser::push_rest(std::string_view text, OutputPiece& out) {
  if (!calls_) {
    out.content += text;
    return;
  }
  for (const char c : text) calls_->step(c, out);
}

void OutputParser::finish(OutputPiece& out) {
  std::string rest;
  if (reasoning_) reasoning_->finish(out.reasoning, rest);
  push_rest(rest, out);
  if (calls_) calls_->finish(out);
}

int32_t OutputParser::calls_begun() const {
  return calls_ ? calls_->writer().begun() : 0;
}
int32_t OutputParser::calls_ended() const {
  return calls_ ? calls_->writer().ended() : 0;
}
bool OutputParser::calls_complete() const {
  return !calls_ || calls_->writer().complete();
}

}  // namespace text
