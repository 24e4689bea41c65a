#include "text/json_call_reader.h"

#include <fmt/format.h>

#include <utility>

namespace text {
namespace {

bool word_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.';
}

// The text of a JSON string with its quotes; nothing when it is none.
std::optional<std::string> unquoted(std::string_view json) {
  const auto value = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

}  // namespace

bool has_tool(const nlohmann::ordered_json& tools, std::string_view name) {
  for (const auto& tool : tools) {
    if (tool["function"]["name"].get_ref<const std::string&>() == name) return true;
  }
  return false;
}

JsonValueScanner::Step JsonValueScanner::step(char c) {
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      if (open_.empty()) return Step::kEnd;
    }
    return Step::kMore;
  }
  if (word_) return word_char(c) ? Step::kMore : Step::kPast;
  if (!begun_ && is_space(c)) return Step::kMore;
  const bool first = !std::exchange(begun_, true);
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    open_.push_back(c == '{' ? '}' : ']');
  } else if (c == '}' || c == ']') {
    if (open_.empty() || open_.back() != c) return Step::kBad;
    open_.pop_back();
    if (open_.empty()) return Step::kEnd;
  } else if (first) {
    if (!word_char(c)) return Step::kBad;
    word_ = true;
  }
  return Step::kMore;
}

JsonValueScanner::Step ArgumentsReader::step(char c, PieceWriter& writer, OutputPiece& out) {
  using Step = JsonValueScanner::Step;
  const bool was_in_string = scanner_.in_string();
  const Step step = scanner_.step(c);
  if (step == Step::kBad) return step;
  if (!begun_) {
    if (is_space(c)) return step;
    begun_ = true;
    streams_ = c == '{';
  }
  const bool control = was_in_string && static_cast<unsigned char>(c) < 0x20;
  if (step != Step::kPast) {
    if (control) {
      text_ += c == '\n' ? "\\n" : c == '\t' ? "\\t" : fmt::format("\\u{:04x}", c);
    } else {
      text_ += c;
    }
  }
  if (streams_) {
    writer.arguments(std::exchange(text_, {}), out);
  } else if (step != Step::kMore) {
    const std::optional<std::string> inner = unquoted(text_);
    if (text_ == "null" || (inner && inner->empty())) text_ = "{}";
    writer.arguments(inner && !inner->empty() ? *inner : text_, out);
  }
  return step;
}

JsonCallReader::Step JsonCallReader::step(char c, PieceWriter& writer, OutputPiece& out) {
  const Step step = read(c, writer, out);
  if (told_) {
    raw_.clear();
    if (step == Step::kOther) writer.end_call(false);
  } else if (step == Step::kMore) {
    raw_ += c;
  }
  return step;
}

JsonCallReader::Step JsonCallReader::read(char c, PieceWriter& writer, OutputPiece& out) {
  if (state_ == State::kInKey) {
    piece_ += c;
    if (scanner_.step(c) != JsonValueScanner::Step::kEnd) return Step::kMore;
    state_ = State::kColon;
    return take_key() ? Step::kMore : Step::kOther;
  }
  if (state_ == State::kInValue) return read_value(c, writer, out);
  if (is_space(c)) return Step::kMore;
  switch (state_) {
    case State::kStart:
      if (c != '{') return Step::kOther;
      state_ = State::kKey;
      return Step::kMore;
    case State::kKey:
      if (c == '}' && first_) return end_object(writer, out);
      if (c != '"') return Step::kOther;
      first_ = false;
      scanner_ = {};
      scanner_.step(c);
      piece_ = c;
      state_ = State::kInKey;
      return Step::kMore;
    case State::kColon:
      if (c != ':') return Step::kOther;
      state_ = State::kValue;
      return Step::kMore;
    case State::kValue:
      scanner_ = {};
      piece_.clear();
      state_ = State::kInValue;
      // Told at the first brace: what follows "name" in an object that is no call may be anything.
      if (key_ == Key::kArguments && !name_.empty()) {
        if (word_char(c) || c == '"' || c == '{' || c == '[') {
          writer.begin_call(name_, out);
          told_ = true;
        }
      }
      return read_value(c, writer, out);
    case State::kAfterValue:
      if (c == '}') return end_object(writer, out);
      if (c != ',') return Step::kOther;
      state_ = State::kKey;
      return Step::kMore;
    case State::kInKey:
    case State::kInValue:
      break;
  }
  return Step::kOther;
}

JsonCallReader::Step JsonCallReader::read_value(char c, PieceWriter& writer, OutputPiece& out) {
  using Scan = JsonValueScanner::Step;
  const bool streams = key_ == Key::kArguments && told_;
  const Scan scan = streams ? arguments_.step(c, writer, out) : scanner_.step(c);
  if (scan == Scan::kBad) return Step::kOther;
  if (!streams && scan != Scan::kPast) piece_ += c;
  if (scan == Scan::kMore) return Step::kMore;
  const Step ended = end_value(writer, out);
  if (ended != Step::kMore || scan == Scan::kEnd) return ended;
  return read(c, writer, out);  // the byte behind a number or a word
}

JsonCallReader::Step JsonCallReader::end_value(PieceWriter& writer, OutputPiece& out) {
  state_ = State::kAfterValue;
  if (key_ == Key::kName) {
    if (!take_name()) return Step::kOther;
    if (!arguments_seen_) return Step::kMore;
    writer.begin_call(name_, out);
    told_ = true;
    bool past = true;
    for (const char c : std::exchange(waiting_, {}))
      past = arguments_.step(c, writer, out) == JsonValueScanner::Step::kMore;
    if (past) arguments_.step(' ', writer, out);  // ends a number or a word
  } else if (key_ == Key::kArguments) {
    arguments_seen_ = true;
    if (!told_) waiting_ = std::exchange(piece_, {});
  }
  return Step::kMore;
}

JsonCallReader::Step JsonCallReader::end_object(PieceWriter& writer, OutputPiece& out) {
  if (!told_) {
    if (name_.empty()) return Step::kOther;
    writer.begin_call(name_, out);  // a call without arguments
    writer.arguments("{}", out);
    told_ = true;
  }
  writer.end_call(true);
  return Step::kDone;
}

bool JsonCallReader::take_key() {
  const std::optional<std::string> key = unquoted(piece_);
  if (!key) return false;
  key_ = *key == "name"                                ? Key::kName
         : *key == "arguments" || *key == "parameters" ? Key::kArguments
                                                       : Key::kOther;
  if (key_ == Key::kName && !name_.empty()) return false;  // given twice
  if (key_ == Key::kArguments && arguments_seen_) return false;
  if (key_ == Key::kOther && tools_ != nullptr && *key != "type" && *key != "id") return false;
  return true;
}

bool JsonCallReader::take_name() {
  std::optional<std::string> name = unquoted(piece_);
  if (!name || name->empty()) return false;
  if (tools_ != nullptr && !has_tool(*tools_, *name)) return false;
  name_ = *std::move(name);
  return true;
}

}  // namespace text
