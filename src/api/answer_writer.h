// The JSON of answers and of the chunks of streams, for both APIs.
//
// Framing facts that clients depend on: `finish_reason` is null until the last chunk of a choice;
// the role comes with the first token, never before; the usage chunk has `choices: []`;
// `cached_tokens` is always there. Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "api/choice.h"
#include "api/generate_request.h"

namespace api {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

class AnswerWriter {
 public:
  // `id_suffix`: the part of the id after "cmpl-" or "chatcmpl-".
  AnswerWriter(const GenerateRequest& request, const ServedModel& model,
               const std::string& id_suffix, int64_t created_s);

  // One chunk of a stream. `first`: the choice has sent nothing yet (the role, and the echo of the
  // prompt, go with it). `choice.finished()` decides whether it carries the finish reason. `usage`:
  // given when stream_options asks for it in each chunk.
  std::string chunk(size_t index, const Choice& choice, const Delta& delta, bool first,
                    const PreparedPrompt& prompt, const std::optional<Usage>& usage) const;
  std::string usage_chunk(const Usage& usage) const;

  // The answer of a request that does not stream: begin, each choice in order, end.
  std::string begin() const;
  void append_choice(std::string& out, size_t index, const Choice& choice, const Delta& whole,
                     const PreparedPrompt& prompt) const;
  void end(std::string& out, const Usage& usage) const;

 private:
  void append_head(std::string& out, const char* object) const;
  void append_logprobs(std::string& out, const Choice& choice, const Delta& delta, bool with_prompt,
                       const PreparedPrompt& prompt) const;
  void append_finish(std::string& out, const Choice& choice) const;
  bool chat() const { return request_.endpoint == Endpoint::kChat; }

  const GenerateRequest& request_;
  const ServedModel& model_;
  std::string head_;  // "id":...,"created":...,"model":...
};

}  // namespace api
