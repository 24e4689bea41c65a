// Qwen3-Coder:
// <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>, values as
// plain text, one line break around them. Which values are strings only the tool's schema says;
// strings stream, others are told when they are whole.
#include "text/call_parser.h"
#include "text/json_call_reader.h"

namespace text {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kCallTag = "<tool_call>";
constexpr std::string_view kFunctionTag = "<function=";
constexpr size_t kNameBytesMax = 256;

const ordered_json* member(const ordered_json* value, std::string_view name) {
  if (value == nullptr || !value->is_object()) return nullptr;
  const auto found = value->find(name);
  return found == value->end() ? nullptr : &*found;
}

// The types that a schema allows, as their names in it; empty: any.
void add_types(const ordered_json* schema, int depth, std::vector<std::string_view>& types) {
  if (const ordered_json* type = member(schema, "type")) {
    if (type->is_string()) types.push_back(type->get_ref<const std::string&>());
    for (const auto& one : *type) {
      if (type->is_array() && one.is_string()) types.push_back(one.get_ref<const std::string&>());
    }
  }
  for (const char* name : {"anyOf", "oneOf"}) {
    const ordered_json* list = member(schema, name);
    if (list == nullptr || !list->is_array() || depth == 0) continue;
    for (const ordered_json& one : *list) add_types(&one, depth - 1, types);
  }
}

std::string_view type_of(const ordered_json& value) {
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  return value.type_name();  // null, object, array, string, boolean
}

class Qwen3CoderParser final : public CallParser {
 public:
  explicit Qwen3CoderParser(const ordered_json* tools) : tools_(tools) {}

  void step(char c, OutputPiece& out) override {
    switch (state_) {
      case State::kContent:
        return content(c, out);
      case State::kOpen:
      case State::kFunction:
      case State::kName:
        if (!opening(c, out)) no_call(c, out);
        return;
      case State::kBody:
        return body(c, out);
      case State::kKey:
        return key(c, out);
      case State::kValue:
        return value(c, out);
      case State::kBehind:
        return behind(c, out);
    }
  }

  void finish(OutputPiece& out) override {
    if (state_ == State::kContent) writer_.content(open_.take(), out);
    if (state_ == State::kBehind) writer_.content(behind_.take(), out);
    if (state_ == State::kValue) {  // the text ends inside a value: what there is of it
      if (is_string_) {
        string_text(end_.take(), out);
        if (line_break_) writer_.arguments("\\n", out);
      } else {
        writer_.arguments(value_ + end_.take(), out);
      }
    }
    writer_.content(raw_, out);
    writer_.finish(out);
  }

 private:
  enum class State : uint8_t { kContent, kOpen, kFunction, kName, kBody, kKey, kValue, kBehind };

  void content(char c, OutputPiece& out) {
    std::string text;
    const int found = open_.step(c, text);
    writer_.content(text, out);
    if (found >= 0) begin(found);
  }

  void begin(int marker) {
    state_ = marker == 0 ? State::kOpen : State::kName;
    raw_ = marker == 0 ? kCallTag : kFunctionTag;
    name_.clear();
  }

  // From the tag to the name's end. False: no call.
  bool opening(char c, OutputPiece& out) {
    if (state_ == State::kOpen && !is_space(c)) {
      state_ = State::kFunction;
      function_.restart();
    }
    if (state_ == State::kFunction) {
      const ExactMarker::Step step = function_.step(c);
      if (step == ExactMarker::Step::kOther) return false;
      if (step == ExactMarker::Step::kFound) state_ = State::kName;
    } else if (state_ == State::kName) {
      if (c == '>') {
        if (name_.empty()) return false;
        raw_.clear();
        writer_.begin_call(name_, out);
        state_ = State::kBody;
        gap_.clear();
        first_ = true;
        return true;
      }
      if (is_space(c) || c == '<' || name_.size() == kNameBytesMax) return false;
      name_ += c;
    }
    raw_ += c;
    return true;
  }

  void body(char c, OutputPiece& out) {
    std::string other;
    const int found = body_.step(c, other);
    gap_ += other;
    if (other.find_first_not_of(" \n\t\r") != std::string::npos) {
      // Text between parameters: the call is over, the text is content.
      writer_.end_call(false);
      state_ = State::kContent;
      for (const char text : std::exchange(gap_, {}) + body_.take()) content(text, out);
    } else if (found == 0) {
      state_ = State::kKey;
      key_.clear();
    } else if (found == 1) {
      writer_.arguments(first_ ? "{}" : "}", out);
      writer_.end_call(true);
      state_ = State::kBehind;
    }
  }

  void key(char c, OutputPiece& out) {
    if (c == '\n' || c == '<' || key_.size() == kNameBytesMax) {
      writer_.end_call(false);
      state_ = State::kContent;
      for (const char text : "<parameter=" + key_ + c) content(text, out);
      return;
    }
    if (c != '>') {
      key_ += c;
      return;
    }
    writer_.arguments(first_ ? "{" : ", ", out);
    first_ = false;
    writer_.arguments(quoted(key_) + ": ", out);
    find_types();
    value_.clear();
    line_break_ = false;
    begun_ = false;
    state_ = State::kValue;
    if (is_string_) writer_.arguments("\"", out);
  }

  void value(char c, OutputPiece& out) {
    if (!begun_) {
      begun_ = true;
      if (c == '\n') return;
    }
    std::string text;
    const bool ended = end_.step(c, text) >= 0;
    if (is_string_) {
      string_text(text, out);
      if (ended) writer_.arguments("\"", out);
    } else {
      value_ += text;
      if (ended) other_value(out);
    }
    if (!ended) return;
    state_ = State::kBody;
    gap_.clear();
  }

  // A line break is held: before the closing tag it is framing.
  void string_text(std::string_view text, OutputPiece& out) {
    std::string json;
    for (const char c : text) {
      if (std::exchange(line_break_, c == '\n')) json += "\\n";
      if (c != '\n') append_escaped(json, c);
    }
    writer_.arguments(json, out);
  }

  // A value that need not be a string: JSON of an allowed type as it is, else a string all the
  // same.
  void other_value(OutputPiece& out) {
    if (value_.ends_with('\n')) value_.pop_back();
    std::string_view text = value_;
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    if (text == "True") text = "true";
    if (text == "False") text = "false";
    if (text == "None") text = "null";
    const auto parsed = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_discarded() && !parsed.is_string() && allows(type_of(parsed))) {
      writer_.arguments(text, out);
    } else {
      writer_.arguments(quoted(value_), out);
    }
  }

  bool allows(std::string_view type) const {
    if (types_.empty()) return true;
    for (const std::string_view one : types_) {
      if (one == type || (one == "number" && type == "integer")) return true;
    }
    return false;
  }

  void find_types() {
    types_.clear();
    is_string_ = true;  // what no schema speaks of
    if (tools_ == nullptr) return;
    for (const ordered_json& tool : *tools_) {
      const ordered_json& function = tool["function"];
      if (function["name"].get_ref<const std::string&>() != name_) continue;
      const ordered_json* schema =
          member(member(member(&function, "parameters"), "properties"), key_);
      if (schema == nullptr) return;
      add_types(schema, 8, types_);
      const bool refers = member(schema, "$ref") != nullptr || member(schema, "allOf") != nullptr;
      is_string_ = types_.empty() && !refers;
      for (const std::string_view type : types_) is_string_ |= type == "string";
      for (const std::string_view type : types_) is_string_ &= type == "string";
      if (refers) types_.clear();
      return;
    }
  }

  void behind(char c, OutputPiece& out) {
    std::string text;
    const int found = behind_.step(c, text);
    writer_.content(text, out);
    if (found == 2) state_ = State::kContent;
    if (found == 0 || found == 1) begin(found);
    if (found >= 0 || text.find_first_not_of(" \n\t\r") == std::string::npos) return;
    state_ = State::kContent;
    for (const char held : behind_.take()) content(held, out);
  }

  void no_call(char c, OutputPiece& out) {
    writer_.content(std::exchange(raw_, {}), out);
    state_ = State::kContent;
    content(c, out);
  }

  static void append_escaped(std::string& json, char c) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (byte >= 0x20) {
      json += c;
    } else {
      constexpr char kHex[] = "0123456789abcdef";
      json += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : "\\u00";
      if (c == '\n' || c == '\t' || c == '\r') return;
      json += kHex[byte >> 4];
      json += kHex[byte & 15];
    }
  }
  static std::string quoted(std::string_view text) {
    std::string json = "\"";
    for (const char c : text) append_escaped(json, c);
    return json + '"';
  }

  const ordered_json* tools_;
  State state_ = State::kContent;
  std::string raw_;  // what is no call yet
  std::string name_;
  std::string key_;
  std::vector<std::string_view> types_;  // of the parameter; in the tools
  bool is_string_ = false;
  bool first_ = true;        // no parameter yet
  bool begun_ = false;       // the value
  bool line_break_ = false;  // held at the end of a string
  std::string value_;
  std::string gap_;  // white space behind the last tag of a call
  MarkerMatcher open_{{kCallTag, kFunctionTag}};
  ExactMarker function_{kFunctionTag};
  MarkerMatcher body_{{"<parameter=", "</function>"}};
  MarkerMatcher end_{{"</parameter>"}};
  MarkerMatcher behind_{{kCallTag, kFunctionTag, "</tool_call>"}};
};

}  // namespace

std::unique_ptr<CallParser> make_qwen3_coder_parser(const ordered_json* tools) {
  return std::make_unique<Qwen3CoderParser>(tools);
}

}  // namespace text
