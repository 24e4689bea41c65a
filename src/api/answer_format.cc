#include "api/answer_format.h"

#include "api/openai_format.h"

namespace api {

std::unique_ptr<AnswerFormat> make_answer_format(const GenerateRequest& request,
                                                 const ServedModel& model,
                                                 const std::string& id_suffix, int64_t created_s) {
  return std::make_unique<OpenAiFormat>(request, model, id_suffix, created_s);
}

}  // namespace api
