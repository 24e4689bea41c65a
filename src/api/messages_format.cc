#include "api/messages_format.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/json_writer.h"
#include "http/sse.h"

namespace api {
namespace {

constexpr std::string_view kPing = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

void append_usage(std::string& out, const Usage& usage) {
  out += fmt::format(
      R"({{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},"output_tokens":{}}})",
      usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, usage.completion_tokens);
}

// Null when the server ended it: Anthropic's reasons have no word for that.
const char* stop_reason(const Choice& choice) {
  if (choice.reason() == core::FinishReason::kLength) return "\"max_tokens\"";
  if (choice.reason() != core::FinishReason::kStop) return "null";
  if (choice.has_calls()) return "\"tool_use\"";
  return choice.stop_string() ? "\"stop_sequence\"" : "\"end_turn\"";
}

// `finished`: null while the stream begins.
std::string stop_fields(const Choice* finished) {
  if (finished == nullptr) return R"("stop_reason":null,"stop_sequence":null)";
  std::string out = fmt::format(R"("stop_reason":{},"stop_sequence":)", stop_reason(*finished));
  if (finished->stop_string()) {
    append_json_string(out, *finished->stop_string());
  } else {
    out += "null";
  }
  return out;
}

// `input` must be an object. Arguments that were cut off by max_tokens are none: then it is empty.
std::string_view input_object(const std::string& arguments) {
  const size_t first = arguments.find_first_not_of(" \t\r\n");
  const bool whole =
      first != std::string::npos && arguments[first] == '{' && nlohmann::json::accept(arguments);
  return whole ? std::string_view(arguments) : std::string_view("{}");
}

std::string tool_use(const ToolCallDelta& call, std::string_view input) {
  std::string out = R"({"type":"tool_use","id":)";
  append_json_string(out, call.id);
  out += R"(,"name":)";
  append_json_string(out, call.name);
  out += R"(,"input":)";
  out += input;
  return out + '}';
}

}  // namespace

MessagesFormat::MessagesFormat(const ServedModel& model, const std::string& id_suffix,
                               std::string_view request_id)
    : id_("msg_" + id_suffix),
      request_id_(request_id),
      signature_(id_suffix),
      model_name_(model.served_name) {}

void MessagesFormat::append_message(std::string& out, std::string_view content,
                                    std::string_view stop, const Usage& usage) const {
  out += fmt::format(R"({{"id":"{}","type":"message","role":"assistant","model":)", id_);
  append_json_string(out, model_name_);
  out += fmt::format(R"(,"content":[{}],{},"usage":)", content, stop);
  append_usage(out, usage);
  out += '}';
}

std::string MessagesFormat::whole(const std::vector<ChoiceView>& choices, const Usage& usage) {
  const ChoiceView& view = choices.front();
  const Delta& delta = view.delta;
  std::string content;
  const auto next = [&content] {
    if (!content.empty()) content += ',';
  };
  if (!delta.reasoning.empty()) {
    content += R"({"type":"thinking","thinking":)";
    append_json_string(content, delta.reasoning);
    content += R"(,"signature":)";
    append_json_string(content, signature_);
    content += '}';
  }
  if (!delta.text.empty()) {
    next();
    content += R"({"type":"text","text":)";
    append_json_string(content, delta.text);
    content += '}';
  }
  for (const ToolCallDelta& call : delta.calls) {
    next();
    content += tool_use(call, input_object(call.arguments));
  }
  std::string out;
  append_message(out, content, stop_fields(&view.choice), usage);
  return out;
}

void MessagesFormat::open(std::string& out, Block kind, std::string_view start) {
  close(out);
  open_ = kind;
  open_index_ = next_block_++;
  http::append_event(
      out, "content_block_start",
      fmt::format(R"({{"type":"content_block_start","index":{},"content_block":{}}})", open_index_,
                  start));
}

void MessagesFormat::close(std::string& out) {
  if (open_ == Block::kNone) return;
  if (open_ == Block::kThinking) append_piece(out, "signature_delta", "signature", signature_);
  open_ = Block::kNone;
  http::append_event(out, "content_block_stop",
                     fmt::format(R"({{"type":"content_block_stop","index":{}}})", open_index_));
}

void MessagesFormat::append_piece(std::string& out, const char* type, const char* field,
                                  std::string_view text) const {
  std::string event =
      fmt::format(R"({{"type":"content_block_delta","index":{},"delta":{{"type":"{}","{}":)",
                  open_index_, type, field);
  append_json_string(event, text);
  http::append_event(out, "content_block_delta", event + "}}");
}

void MessagesFormat::append_delta(std::string& out, const ChoiceView& view, const Usage& usage) {
  if (!std::exchange(begun_, true)) {
    std::string start = R"({"type":"message_start","message":)";
    append_message(start, "", stop_fields(nullptr), usage);
    http::append_event(out, "message_start", start + '}');
  }
  const Delta& delta = view.delta;
  if (!delta.reasoning.empty()) {
    if (open_ != Block::kThinking)
      open(out, Block::kThinking, R"({"type":"thinking","thinking":"","signature":""})");
    append_piece(out, "thinking_delta", "thinking", delta.reasoning);
  }
  if (!delta.text.empty()) {
    if (open_ != Block::kText) open(out, Block::kText, R"({"type":"text","text":""})");
    append_piece(out, "text_delta", "text", delta.text);
  }
  for (const ToolCallDelta& call : delta.calls) {
    if (!call.id.empty()) open(out, Block::kToolUse, tool_use(call, "{}"));
    if (!call.arguments.empty())
      append_piece(out, "input_json_delta", "partial_json", call.arguments);
  }
  if (!view.choice.finished()) return;
  stop_ = stop_fields(&view.choice);
  aborted_ = view.choice.reason() == core::FinishReason::kAbort;
}

void MessagesFormat::append_end(std::string& out, const Usage& usage) {
  // A message that stops for no reason would pass for a whole one.
  if (aborted_) return append_error(out, {Problem::kDraining, kAborted});
  close(out);
  std::string event = fmt::format(R"({{"type":"message_delta","delta":{{{}}},"usage":)", stop_);
  append_usage(event, usage);
  http::append_event(out, "message_delta", event + '}');
  http::append_event(out, "message_stop", R"({"type":"message_stop"})");
}

void MessagesFormat::append_error(std::string& out, const ApiError& error) {
  http::append_event(out, "error", error_json(error, ErrorShape::kAnthropic, request_id_));
}

std::string_view MessagesFormat::ping() const {
  return kPing;
}

}  // namespace api
