#include "api/responses_format.h"

#include <fmt/format.h>

#include "api/json_writer.h"
#include "http/sse.h"

namespace api {
namespace {

std::string json_text(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

// A field as the request had it, else `otherwise`.
std::string given(const GenerateRequest& request, const char* name, const char* otherwise) {
  const auto found = request.echoed.find(name);
  return found == request.echoed.end() ? otherwise : found->second;
}

std::string text_part(std::string_view text) {
  return R"({"type":"output_text","annotations":[],"logprobs":[],"text":)" + json_text(text) + '}';
}

std::string reasoning_part(std::string_view text) {
  return R"({"type":"reasoning_text","text":)" + json_text(text) + '}';
}

std::string usage_json(const Usage& usage) {
  return fmt::format(
      R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},"output_tokens":{},"output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}})",
      usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens,
      usage.prompt_tokens + usage.completion_tokens);
}

}  // namespace

ResponsesFormat::ResponsesFormat(const GenerateRequest& request, const ServedModel& model,
                                 const std::string& id_suffix, int64_t created_s)
    : request_(request),
      id_suffix_(id_suffix),
      model_name_(model.served_name),
      created_s_(created_s) {}

ResponsesFormat::Status ResponsesFormat::status_of(const Choice& choice) {
  switch (choice.reason()) {
    case core::FinishReason::kStop:
      return Status::kCompleted;
    case core::FinishReason::kLength:
      return Status::kIncomplete;
    case core::FinishReason::kAbort:
    case core::FinishReason::kError:
      break;
  }
  return Status::kFailed;
}

std::string ResponsesFormat::item_id(Kind kind) const {
  const char* prefix = kind == Kind::kReasoning ? "rs" : kind == Kind::kMessage ? "msg" : "fc";
  return fmt::format("{}_{}{:02x}", prefix, id_suffix_, items_);
}

// An item that has no text yet has no part yet.
std::string ResponsesFormat::item_json(const Item& item, const char* status) const {
  const bool begins = std::string_view(status) == "in_progress";
  std::string out = fmt::format(R"({{"id":"{}","status":"{}",)", item_id(item.kind), status);
  switch (item.kind) {
    case Kind::kReasoning:
      out += fmt::format(R"("type":"reasoning","summary":[],"content":[{}]}})",
                         begins ? "" : reasoning_part(item.text));
      break;
    case Kind::kMessage:
      out += fmt::format(R"("type":"message","role":"assistant","content":[{}]}})",
                         begins ? "" : text_part(item.text));
      break;
    case Kind::kCall:
    case Kind::kNone:
      out += fmt::format(R"("type":"function_call","call_id":{},"name":{},"arguments":{}}})",
                         json_text(item.call_id), json_text(item.name), json_text(item.text));
      break;
  }
  return out;
}

std::string ResponsesFormat::response_json(Status status, std::string_view output,
                                           const Usage* usage, std::string_view error) const {
  static constexpr const char* kNames[] = {"in_progress", "completed", "incomplete", "failed"};
  std::string out = fmt::format(
      R"({{"id":"resp_{}","object":"response","created_at":{},"status":"{}","background":false,"error":{},"incomplete_details":{},)",
      id_suffix_, created_s_, kNames[static_cast<size_t>(status)],
      status == Status::kFailed
          ? fmt::format(R"({{"code":"server_error","message":{}}})", json_text(error))
          : "null",
      status == Status::kIncomplete ? R"({"reason":"max_output_tokens"})" : "null");
  out += fmt::format(
      R"("model":{},"instructions":{},"max_output_tokens":{},"output":[{}],"parallel_tool_calls":{},"previous_response_id":null,"store":false,)",
      json_text(model_name_), given(request_, "instructions", "null"),
      given(request_, "max_output_tokens", "null"), output,
      request_.parallel_tool_calls ? "true" : "false");
  out += fmt::format(
      R"("reasoning":{},"temperature":{},"top_p":{},"text":{},"tool_choice":{},"tools":{},"truncation":"disabled","metadata":{},"usage":{}}})",
      given(request_, "reasoning", R"({"effort":null,"summary":null})"),
      request_.sampling.temperature, request_.sampling.top_p,
      given(request_, "text", R"({"format":{"type":"text"}})"),
      given(request_, "tool_choice", "\"auto\""), given(request_, "tools", "[]"),
      given(request_, "metadata", "{}"), usage == nullptr ? "null" : usage_json(*usage));
  return out;
}

std::string ResponsesFormat::whole(const std::vector<ChoiceView>& choices, const Usage& usage) {
  const ChoiceView& view = choices.front();
  std::vector<Item> items;
  if (!view.delta.reasoning.empty()) items.push_back({Kind::kReasoning, view.delta.reasoning});
  if (!view.delta.text.empty()) items.push_back({Kind::kMessage, view.delta.text});
  for (const ToolCallDelta& call : view.delta.calls)
    items.push_back({Kind::kCall, call.arguments, call.id, call.name});
  const Status status = status_of(view.choice);
  std::string output;
  for (items_ = 0; items_ < static_cast<int64_t>(items.size()); ++items_) {
    const bool cut = status != Status::kCompleted && items_ + 1 == std::ssize(items);
    if (items_ > 0) output += ',';
    output += item_json(items[static_cast<size_t>(items_)], cut ? "incomplete" : "completed");
  }
  return response_json(status, output, &usage, kAborted);
}

// ---- streams

void ResponsesFormat::append_typed(std::string& out, const char* type, std::string_view fields) {
  http::append_event(
      out, type,
      fmt::format(R"({{"type":"{}","sequence_number":{},{}}})", type, sequence_number_++, fields));
}

// Events of the open item, with its place.
void ResponsesFormat::append_of_item(std::string& out, const char* type, std::string_view fields) {
  append_typed(
      out, type,
      fmt::format(R"("item_id":"{}","output_index":{},{})", item_id(open_.kind), items_, fields));
}

void ResponsesFormat::begin(std::string& out) {
  if (std::exchange(begun_, true)) return;
  for (const char* type : {"response.created", "response.in_progress"}) {
    append_typed(out, type, "\"response\":" + response_json(Status::kInProgress, "", nullptr, ""));
  }
}

void ResponsesFormat::open(std::string& out, Item item) {
  close(out, "completed");
  open_ = std::move(item);
  append_typed(
      out, "response.output_item.added",
      fmt::format(R"("output_index":{},"item":{})", items_, item_json(open_, "in_progress")));
  if (open_.kind == Kind::kCall) return;
  append_of_item(out, "response.content_part.added",
                 R"("content_index":0,"part":)" +
                     (open_.kind == Kind::kMessage ? text_part("") : reasoning_part("")));
}

void ResponsesFormat::append_piece(std::string& out, std::string_view text) {
  open_.text += text;
  switch (open_.kind) {
    case Kind::kReasoning:
      append_of_item(out, "response.reasoning_text.delta",
                     R"("content_index":0,"delta":)" + json_text(text));
      break;
    case Kind::kMessage:
      append_of_item(out, "response.output_text.delta",
                     R"("content_index":0,"logprobs":[],"delta":)" + json_text(text));
      break;
    case Kind::kCall:
    case Kind::kNone:
      append_of_item(out, "response.function_call_arguments.delta", "\"delta\":" + json_text(text));
      break;
  }
}

void ResponsesFormat::close(std::string& out, const char* status) {
  if (open_.kind == Kind::kNone) return;
  if (open_.kind == Kind::kCall) {
    append_of_item(
        out, "response.function_call_arguments.done",
        fmt::format(R"("name":{},"arguments":{})", json_text(open_.name), json_text(open_.text)));
  } else {
    const bool message = open_.kind == Kind::kMessage;
    append_of_item(out, message ? "response.output_text.done" : "response.reasoning_text.done",
                   fmt::format(R"("content_index":0,{}"text":{})",
                               message ? R"("logprobs":[],)" : "", json_text(open_.text)));
    append_of_item(out, "response.content_part.done",
                   R"("content_index":0,"part":)" +
                       (message ? text_part(open_.text) : reasoning_part(open_.text)));
  }
  const std::string item = item_json(open_, status);
  append_typed(out, "response.output_item.done",
               fmt::format(R"("output_index":{},"item":{})", items_, item));
  if (items_++ > 0) output_ += ',';
  output_ += item;
  open_ = {};
}

void ResponsesFormat::append_delta(std::string& out, const ChoiceView& view, const Usage&) {
  begin(out);
  const Delta& delta = view.delta;
  if (!delta.reasoning.empty()) {
    if (open_.kind != Kind::kReasoning) open(out, {.kind = Kind::kReasoning});
    append_piece(out, delta.reasoning);
  }
  if (!delta.text.empty()) {
    if (open_.kind != Kind::kMessage) open(out, {.kind = Kind::kMessage});
    append_piece(out, delta.text);
  }
  for (const ToolCallDelta& call : delta.calls) {
    if (!call.id.empty()) open(out, {.kind = Kind::kCall, .call_id = call.id, .name = call.name});
    if (!call.arguments.empty()) append_piece(out, call.arguments);
  }
  if (view.choice.finished()) status_ = status_of(view.choice);
}

void ResponsesFormat::append_end(std::string& out, const Usage& usage) {
  close(out, status_ == Status::kCompleted ? "completed" : "incomplete");
  const char* type = status_ == Status::kCompleted    ? "response.completed"
                     : status_ == Status::kIncomplete ? "response.incomplete"
                                                      : "response.failed";
  append_typed(out, type, "\"response\":" + response_json(status_, output_, &usage, kAborted));
}

void ResponsesFormat::append_error(std::string& out, const ApiError& error) {
  begin(out);
  close(out, "incomplete");
  append_typed(
      out, "response.failed",
      "\"response\":" + response_json(Status::kFailed, output_, nullptr, public_message(error)));
}

std::string_view ResponsesFormat::ping() const {
  return http::kPingEvent;
}

}  // namespace api
