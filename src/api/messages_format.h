// Answers of /v1/messages, whole and as typed events of a stream, in Anthropic's shapes.
//
// A message is a list of blocks: thinking, text, tool_use. A stream opens one block at a time and
// closes it before the next. `input_tokens` counts what was not cached, as Anthropic has it: all of
// the prompt is input_tokens + cache_read_input_tokens.
#pragma once

#include <string>
#include <string_view>

#include "api/answer_format.h"

namespace api {

class MessagesFormat final : public AnswerFormat {
 public:
  MessagesFormat(const ServedModel& model, const std::string& id_suffix,
                 std::string_view request_id);

  std::string whole(const std::vector<ChoiceView>& choices, const Usage& usage) override;
  void append_delta(std::string& out, const ChoiceView& view, const Usage& usage) override;
  void append_end(std::string& out, const Usage& usage) override;
  void append_error(std::string& out, const ApiError& error) override;
  std::string_view ping() const override;

 private:
  enum class Block : uint8_t { kNone, kThinking, kText, kToolUse };

  void append_message(std::string& out, std::string_view content, std::string_view stop,
                      const Usage& usage) const;
  // Opens a block of that kind, having closed the one that is open; `start` is the block as
  // content_block_start shows it.
  void open(std::string& out, Block kind, std::string_view start);
  void close(std::string& out);
  // One content_block_delta with `text` as the JSON string `field`.
  void append_piece(std::string& out, const char* type, const char* field,
                    std::string_view text) const;

  std::string id_;
  std::string request_id_;  // that of the HTTP request
  std::string signature_;   // of thinking blocks: opaque to clients, who send it back
  std::string model_name_;
  bool begun_ = false;
  Block open_ = Block::kNone;
  int64_t next_block_ = 0;
  int64_t open_index_ = 0;
  std::string stop_;  // "stop_reason":...,"stop_sequence":... once the choice has finished
  bool aborted_ = false;
};

}  // namespace api
