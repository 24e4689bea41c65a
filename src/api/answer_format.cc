#include "api/answer_format.h"

#include "api/messages_format.h"
#include "api/openai_format.h"
#include "api/responses_format.h"

namespace api {

std::unique_ptr<AnswerFormat> make_answer_format(const GenerateRequest& request,
                                                 const ServedModel& model,
                                                 const std::string& id_suffix,
                                                 std::string_view request_id, int64_t created_s) {
  if (request.endpoint == Endpoint::kMessages)
    return std::make_unique<MessagesFormat>(model, id_suffix, request_id);
  if (request.endpoint == Endpoint::kResponses)
    return std::make_unique<ResponsesFormat>(request, model, id_suffix, created_s);
  return std::make_unique<OpenAiFormat>(request, model, id_suffix, created_s);
}

}  // namespace api
