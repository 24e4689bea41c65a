// From choices and what is new of them to the bytes of an answer: one implementation an API.
//
// generate.cc asks for one of the request's endpoint and hands it what the sequences say; it knows
// no JSON. A format keeps what it has sent, so it serves one answer, either whole() once or the
// events of a stream in order. What it borrows (request, model) must outlive it. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/choice.h"
#include "api/errors.h"
#include "api/generate_request.h"

namespace api {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;  // of completion_tokens
};

// For people, of an answer that ended by FinishReason::kAbort.
inline constexpr const char* kAborted = "The server ended the answer before it was complete.";

// A choice and what of it is to be written: the news, or everything.
struct ChoiceView {
  size_t index;
  const Choice& choice;
  const PreparedPrompt& prompt;
  const Delta& delta;
};

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // The body of an answer that does not stream. `choices` in order of their index, all finished.
  virtual std::string whole(const std::vector<ChoiceView>& choices, const Usage& usage) = 0;

  // Streams: each appends whole events.
  // News of a choice; it carries the finish reason when the choice has finished. `usage`: of this
  // choice, so far.
  virtual void append_delta(std::string& out, const ChoiceView& view, const Usage& usage) = 0;
  // After the last news of all choices. `usage`: of the whole answer.
  virtual void append_end(std::string& out, const Usage& usage) = 0;
  // Instead of the end, whatever was sent before.
  virtual void append_error(std::string& out, const ApiError& error) = 0;
  // What keeps a stream alive that has nothing to say; clients skip it.
  virtual std::string_view ping() const = 0;
};

// `id_suffix`: the part of the answer's id behind the prefix that its API has. `request_id`: what
// errors name where the API has them do so.
std::unique_ptr<AnswerFormat> make_answer_format(const GenerateRequest& request,
                                                 const ServedModel& model,
                                                 const std::string& id_suffix,
                                                 std::string_view request_id, int64_t created_s);

}  // namespace api
