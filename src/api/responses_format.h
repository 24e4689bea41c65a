// Answers of /v1/responses, whole and as typed events of a stream.
//
// The output is a list of items: reasoning, message, function_call. A stream opens one item at a
// time, tells it piece by piece and repeats it whole when it is done; the last event repeats the
// whole response. Nothing is stored, and the response says so.
#pragma once

#include <string>

#include "api/answer_format.h"

namespace api {

class ResponsesFormat final : public AnswerFormat {
 public:
  ResponsesFormat(const GenerateRequest& request, const ServedModel& model,
                  const std::string& id_suffix, int64_t created_s);

  std::string whole(const std::vector<ChoiceView>& choices, const Usage& usage) override;
  void append_delta(std::string& out, const ChoiceView& view, const Usage& usage) override;
  void append_end(std::string& out, const Usage& usage) override;
  void append_error(std::string& out, const ApiError& error) override;
  std::string_view ping() const override;

 private:
  enum class Kind : uint8_t { kNone, kReasoning, kMessage, kCall };
  // The item that is being told.
  struct Item {
    Kind kind = Kind::kNone;
    std::string text;  // reasoning, text or arguments so far
    std::string call_id, name;
  };
  enum class Status : uint8_t { kInProgress, kCompleted, kIncomplete, kFailed };

  static Status status_of(const Choice& choice);
  std::string item_json(const Item& item, const char* status) const;
  std::string item_id(Kind kind) const;
  // The response object. `error`: what failed, for kFailed.
  std::string response_json(Status status, std::string_view output, const Usage* usage,
                            std::string_view error) const;
  void append_typed(std::string& out, const char* type, std::string_view fields);
  void append_of_item(std::string& out, const char* type, std::string_view fields);
  void begin(std::string& out);
  void open(std::string& out, Item item);
  void close(std::string& out, const char* status);
  void append_piece(std::string& out, std::string_view text);

  const GenerateRequest& request_;
  std::string id_suffix_;
  std::string model_name_;
  int64_t created_s_;
  int64_t sequence_number_ = 0;
  bool begun_ = false;
  Status status_ = Status::kInProgress;
  int64_t items_ = 0;  // items done, so the index of the one that is open
  Item open_;
  std::string output_;  // the items that are done, joined by commas
};

}  // namespace api
