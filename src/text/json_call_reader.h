// Calls that are written as JSON, read a byte at a time: {"name": ..., "arguments": {...}}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/call_parser.h"

namespace text {

// Finds the end of one JSON value. Brackets must match and strings must end; whether it is JSON
// otherwise is not looked at.
class JsonValueScanner {
 public:
  // kEnd: `c` is the value's last byte. kPast: the value (a number or a word) ended before `c`.
  enum class Step : uint8_t { kMore, kEnd, kPast, kBad };
  Step step(char c);
  bool in_string() const { return in_string_; }

 private:
  std::vector<char> open_;
  bool begun_ = false;
  bool word_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
};

// The value of "arguments". An object streams as it comes, control characters in its strings as
// JSON wants them; anything else is told at its end: a string that holds JSON as that, null as {}.
class ArgumentsReader {
 public:
  JsonValueScanner::Step step(char c, PieceWriter& writer, OutputPiece& out);
  // The text ends before the value does.
  void finish(PieceWriter& writer, OutputPiece& out) { writer.arguments(text_, out); }

 private:
  JsonValueScanner scanner_;
  bool begun_ = false;
  bool streams_ = false;
  std::string text_;
};

// One call as a JSON object with "name" and "arguments" (or "parameters"), in any order.
class JsonCallReader {
 public:
  // kDone: the call has ended. kOther: `c` cannot belong to a call and is still to be read by the
  // caller; one that was told() has ended as broken, else there was none and raw() is its text.
  enum class Step : uint8_t { kMore, kDone, kOther };
  // `tools`: when given, the name must be in it and no key but those of calls may be there.
  explicit JsonCallReader(const nlohmann::ordered_json* tools = nullptr) : tools_(tools) {}
  Step step(char c, PieceWriter& writer, OutputPiece& out);
  // The text ends here. Tells what there is of the arguments; of what is no call yet nothing is
  // told, and raw() has it.
  void finish(PieceWriter& writer, OutputPiece& out) {
    if (told_) arguments_.finish(writer, out);
  }
  bool told() const { return told_; }
  const std::string& raw() const { return raw_; }  // "" once it is told

 private:
  enum class State : uint8_t { kStart, kKey, kInKey, kColon, kValue, kInValue, kAfterValue };
  enum class Key : uint8_t { kName, kArguments, kOther };
  Step read(char c, PieceWriter& writer, OutputPiece& out);
  Step read_value(char c, PieceWriter& writer, OutputPiece& out);
  Step end_value(PieceWriter& writer, OutputPiece& out);
  Step end_object(PieceWriter& writer, OutputPiece& out);
  bool take_key();
  bool take_name();

  const nlohmann::ordered_json* tools_;
  State state_ = State::kStart;
  Key key_ = Key::kOther;
  bool first_ = true;
  bool told_ = false;
  bool arguments_seen_ = false;
  JsonValueScanner scanner_;
  ArgumentsReader arguments_;
  std::string raw_;    // until it is told
  std::string piece_;  // the key or value being read
  std::string name_;
  std::string waiting_;  // arguments that came before the name
};

// Whether the array of OpenAI function tools has a function of this name.
bool has_tool(const nlohmann::ordered_json& tools, std::string_view name);

}  // namespace text
