// Llama 3: the answer is the call, {"name": ..., "parameters": {...}}; several have a semicolon or
// white space between them. <|python_tag|> may come first, and then also behind content.
#include "text/json_call_reader.h"

namespace text {
namespace {

constexpr std::string_view kTag = "<|python_tag|>";

class Llama3JsonParser final : public CallParser {
 public:
  explicit Llama3JsonParser(const nlohmann::ordered_json* tools)
      : tools_(tools), reader_(nullptr) {}

  void step(char c, OutputPiece& out) override {
    switch (state_) {
      case State::kContent:
        return content(c, out);
      case State::kOpen:
        return open(c, out);
      case State::kCall:
        return call(c, out);
    }
  }

  void finish(OutputPiece& out) override {
    if (state_ == State::kContent) writer_.content(tag_.take(), out);
    if (state_ == State::kOpen) writer_.content(before_, out);
    if (state_ == State::kCall) {
      reader_.finish(writer_, out);
      if (!reader_.told()) no_call(out);
    }
    writer_.finish(out);
  }

 private:
  enum class State : uint8_t { kContent, kOpen, kCall };

  void content(char c, OutputPiece& out) {
    std::string text;
    const bool found = tag_.step(c, text) >= 0;
    writer_.content(text, out);
    if (!found) return;
    state_ = State::kOpen;
    before_ = kTag;
    behind_call_ = false;
  }

  // Where a call may begin: at the start, behind the tag, behind a call.
  void open(char c, OutputPiece& out) {
    if (c == '{') {
      state_ = State::kCall;
      reader_ = JsonCallReader(tools_);
      reader_.step(c, writer_, out);
    } else if (is_space(c) || (c == ';' && behind_call_)) {
      before_ += c;
    } else {
      writer_.content(std::exchange(before_, {}), out);
      state_ = State::kContent;
      content(c, out);
    }
  }

  void call(char c, OutputPiece& out) {
    switch (reader_.step(c, writer_, out)) {
      case JsonCallReader::Step::kMore:
        return;
      case JsonCallReader::Step::kDone:
        state_ = State::kOpen;
        before_.clear();
        behind_call_ = true;
        return;
      case JsonCallReader::Step::kOther:
        if (!reader_.told()) no_call(out);
        state_ = State::kContent;
        return content(c, out);
    }
  }

  void no_call(OutputPiece& out) {
    writer_.content(before_, out);
    writer_.content(reader_.raw(), out);
  }

  const nlohmann::ordered_json* tools_;
  State state_ = State::kOpen;
  bool behind_call_ = false;
  std::string before_;  // what stands before the brace
  MarkerMatcher tag_{{kTag}};
  JsonCallReader reader_;
};

}  // namespace

std::unique_ptr<CallParser> make_llama3_json_parser(const nlohmann::ordered_json* tools) {
  return std::make_unique<Llama3JsonParser>(tools);
}

}  // namespace text
