// Mistral: [TOOL_CALLS] and an array of {"name": ..., "arguments": {...}}, or since 2025
// [TOOL_CALLS]NAME{...} with [CALL_ID]ID and [ARGS] between, the tag again before each call.
#include "text/json_call_reader.h"

namespace text {
namespace {

constexpr std::string_view kTag = "[TOOL_CALLS]";
constexpr size_t kNameBytesMax = 256;

bool name_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '-' || c == '.' || c == ':' || c == '/';
}

class MistralParser final : public CallParser {
 public:
  void step(char c, OutputPiece& out) override {
    switch (state_) {
      case State::kContent:
        return content(c, out);
      case State::kItem:
        return item(c, out);
      case State::kArguments:
        return arguments(c, out);
      default:
        if (!framing(c, out)) no_call(c, out);
    }
  }

  void finish(OutputPiece& out) override {
    if (state_ == State::kContent) writer_.content(open_.take(), out);
    if (state_ == State::kItem) {
      reader_.finish(writer_, out);
      take_raw();
    }
    writer_.content(raw_, out);
    writer_.finish(out);
  }

 private:
  enum class State : uint8_t {
    kContent,
    kOpen,
    kItem,
    kBetween,
    kName,
    kInTag,
    kCallId,
    kArguments
  };

  void content(char c, OutputPiece& out) {
    std::string text;
    const bool found = open_.step(c, text) >= 0;
    writer_.content(text, out);
    if (!found) return;
    state_ = State::kOpen;
    raw_ = kTag;
    name_.clear();
    name_ended_ = false;
  }

  // What stands around names and arguments. False: `c` cannot stand there.
  bool framing(char c, OutputPiece& out) {
    const State state = state_;
    if (state == State::kInTag) {
      std::string other;
      const int found = tag_.step(c, other);
      if (!other.empty()) return false;
      if (found == 0) state_ = State::kArguments;
      if (found == 1) state_ = State::kCallId;
    } else if (is_space(c)) {  // anywhere but inside a tag or a name
      name_ended_ = state == State::kName;
    } else if (state == State::kOpen && c == '[') {
      begin_item();
    } else if (state == State::kBetween && c == ',') {
      begin_item();
    } else if (state == State::kBetween && c == ']') {
      state_ = State::kContent;
      raw_.clear();
      return true;
    } else if ((state == State::kName || state == State::kCallId) && c == '[') {
      state_ = State::kInTag;
      tag_ = MarkerMatcher({"[ARGS]", "[CALL_ID]"});
      std::string other;
      tag_.step(c, other);
    } else if (state == State::kName && c == '{') {
      state_ = State::kArguments;
      arguments(c, out);
      return true;
    } else if ((state == State::kOpen || state == State::kName) && name_char(c) &&
               name_.size() < kNameBytesMax && !name_ended_) {
      state_ = State::kName;
      name_ += c;
    } else if (state != State::kCallId || !name_char(c)) {
      return false;
    }
    raw_ += c;
    return true;
  }

  void item(char c, OutputPiece& out) {
    const JsonCallReader::Step step = reader_.step(c, writer_, out);
    if (step == JsonCallReader::Step::kMore) return;
    take_raw();
    if (step == JsonCallReader::Step::kOther) return no_call(c, out);
    state_ = State::kBetween;
  }

  // What the item was, unless it was told.
  void take_raw() { raw_ = reader_.told() ? "" : raw_ + reader_.raw(); }

  void arguments(char c, OutputPiece& out) {
    if (!told_) {
      if (is_space(c)) {
        raw_ += c;
        return;
      }
      if (c != '{') return no_call(c, out);
      writer_.begin_call(std::exchange(name_, {}), out);
      raw_.clear();
      told_ = true;
      arguments_ = ArgumentsReader();
    }
    const JsonValueScanner::Step step = arguments_.step(c, writer_, out);
    if (step == JsonValueScanner::Step::kMore) return;
    told_ = false;
    const bool whole = step == JsonValueScanner::Step::kEnd;
    writer_.end_call(whole);
    state_ = State::kContent;
    if (!whole) content(c, out);
  }

  void begin_item() {
    state_ = State::kItem;
    reader_ = JsonCallReader();
  }

  void no_call(char c, OutputPiece& out) {
    writer_.content(std::exchange(raw_, {}), out);
    state_ = State::kContent;
    content(c, out);
  }

  State state_ = State::kContent;
  std::string raw_;  // what is no call yet and may never be one
  std::string name_;
  bool name_ended_ = false;
  bool told_ = false;
  MarkerMatcher open_{{kTag}};
  MarkerMatcher tag_{{}};
  JsonCallReader reader_;
  ArgumentsReader arguments_;
};

}  // namespace

std::unique_ptr<CallParser> make_mistral_parser() {
  return std::make_unique<MistralParser>();
}

}  // namespace text
