// Hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one pair of tags a call.
#include "text/json_call_reader.h"

namespace text {
namespace {

constexpr std::string_view kOpenTag = "<tool_call>";
constexpr std::string_view kCloseTag = "</tool_call>";

class HermesParser final : public CallParser {
 public:
  void step(char c, OutputPiece& out) override {
    switch (state_) {
      case State::kContent:
        return content(c, out);
      case State::kCall:
        return call(c, out);
      case State::kBehind:
        return behind(c, out);
    }
  }

  void finish(OutputPiece& out) override {
    if (state_ == State::kContent) writer_.content(open_.take(), out);
    if (state_ == State::kBehind) writer_.content(behind_.take(), out);
    if (state_ == State::kCall) {
      reader_.finish(writer_, out);
      if (!reader_.told()) no_call(out);
    }
    writer_.finish(out);
  }

 private:
  enum class State : uint8_t { kContent, kCall, kBehind };

  void content(char c, OutputPiece& out) {
    std::string text;
    const bool found = open_.step(c, text) >= 0;
    writer_.content(text, out);
    if (found) begin();
  }

  void call(char c, OutputPiece& out) {
    switch (reader_.step(c, writer_, out)) {
      case JsonCallReader::Step::kMore:
        return;
      case JsonCallReader::Step::kDone:
        state_ = State::kBehind;
        return;
      case JsonCallReader::Step::kOther:
        if (!reader_.told()) no_call(out);
        state_ = State::kContent;
        return content(c, out);
    }
  }

  // The closing tag, or the next call's where a model leaves the closing one out.
  void behind(char c, OutputPiece& out) {
    std::string text;
    const int found = behind_.step(c, text);
    writer_.content(text, out);
    if (found == 0) state_ = State::kContent;
    if (found == 1) begin();
    if (found >= 0 || text.find_first_not_of(" \n\t\r") == std::string::npos) return;
    state_ = State::kContent;
    for (const char held : behind_.take()) content(held, out);
  }

  void begin() {
    state_ = State::kCall;
    reader_ = JsonCallReader();
  }
  void no_call(OutputPiece& out) {
    writer_.content(kOpenTag, out);
    writer_.content(reader_.raw(), out);
  }

  State state_ = State::kContent;
  MarkerMatcher open_{{kOpenTag}};
  MarkerMatcher behind_{{kCloseTag, kOpenTag}};
  JsonCallReader reader_;
};

}  // namespace

std::unique_ptr<CallParser> make_hermes_parser() {
  return std::make_unique<HermesParser>();
}

}  // namespace text
