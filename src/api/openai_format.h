// Answers of /v1/completions and /v1/chat/completions, whole and as the chunks of streams.
//
// Framing facts that clients depend on: `finish_reason` is null until the last chunk of a choice;
// the role comes with the first token, never before; the usage chunk has `choices: []`;
// `cached_tokens` is always there; [DONE] ends every stream, also one that failed.
#pragma once

#include <set>
#include <string>

#include "api/answer_format.h"

namespace api {

class OpenAiFormat final : public AnswerFormat {
 public:
  OpenAiFormat(const GenerateRequest& request, const ServedModel& model,
               const std::string& id_suffix, int64_t created_s);

  std::string whole(const std::vector<ChoiceView>& choices, const Usage& usage) override;
  void append_delta(std::string& out, const ChoiceView& view, const Usage& usage) override;
  void append_end(std::string& out, const Usage& usage) override;
  void append_error(std::string& out, const ApiError& error) override;
  std::string_view ping() const override;

 private:
  // `first`: the choice has sent nothing yet (the role, and the echo of the prompt, go with it).
  std::string chunk(const ChoiceView& view, bool first, const Usage& usage) const;
  void append_choice(std::string& out, const ChoiceView& view) const;
  void append_logprobs_of_prompt(std::string& out, const ChoiceView& view) const;
  void append_head(std::string& out, const char* object) const;
  void append_logprobs(std::string& out, const ChoiceView& view, bool with_prompt) const;
  void append_message(std::string& out, const ChoiceView& view, bool whole, bool first) const;
  void append_finish(std::string& out, const Choice& choice) const;
  bool chat() const { return request_.endpoint == Endpoint::kChat; }

  const GenerateRequest& request_;
  const ServedModel& model_;
  std::string head_;        // "id":...,"created":...,"model":...
  std::set<size_t> begun_;  // streams: choices that have sent something
};

}  // namespace api
