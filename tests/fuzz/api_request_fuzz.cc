// Request bodies from anyone: the first byte chooses the endpoint, the rest is the body. Whatever
// it is, the answer is a request that fits the context or an error that can be written as JSON.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "api/errors.h"
#include "api/prepare.h"
#include "api/render.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace {

constexpr int32_t kContext = 512;

const api::ServedModel& byte_model() {
  static const std::unique_ptr<text::Tokenizer> tokenizer = [] {
    core::TokenizerData data;
    data.pre = "gpt-2";
    for (int byte = 0; byte < 256; ++byte) {
      text::append_utf8(data.tokens.emplace_back(),
                        text::byte_level_char(static_cast<uint8_t>(byte)));
    }
    return text::Tokenizer::create(std::move(data)).value();
  }();
  static const text::ChatTemplate chat_template =
      text::ChatTemplate::parse(text::kDefaultChatTemplate).value();
  static const api::ServedModel model = [] {
    api::ServedModel made;
    made.served_name = "m";
    made.context_max = kContext;
    made.config.vocab_size = 256;
    made.tokenizer = tokenizer.get();
    made.chat_template = &chat_template;
    made.call_format = text::CallFormat::kHermes;
    return made;
  }();
  return model;
}

void require(bool condition) {
  if (!condition) std::abort();
}

template <typename T>
void check_error(const std::variant<T, api::ApiError>& outcome) {
  const auto* error = std::get_if<api::ApiError>(&outcome);
  if (error == nullptr) return;
  require(!error->message.empty());
  require(api::error_json(*error).size() < 4096 + 6 * error->message.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr api::Endpoint kGenerating[] = {api::Endpoint::kCompletions, api::Endpoint::kChat,
                                           api::Endpoint::kMessages, api::Endpoint::kResponses};
  constexpr size_t kPlaces[] = {0, 1, SIZE_MAX, SIZE_MAX, 2, 3, SIZE_MAX, SIZE_MAX};
  switch (data[0] % 8) {
    case 0:
    case 1:
    case 4:
    case 5: {
      const api::Endpoint endpoint = kGenerating[kPlaces[data[0] % 8]];
      const auto outcome = api::prepare_generation(endpoint, body, byte_model(), 0);
      check_error(outcome);
      if (const auto* prepared = std::get_if<api::Prepared>(&outcome)) {
        require(!prepared->prompts.empty() && prepared->request.n >= 1);
        for (const api::PreparedPrompt& prompt : prepared->prompts) {
          require(!prompt.tokens.empty() && prompt.max_tokens >= 0);
          require(static_cast<int64_t>(prompt.tokens.size()) + prompt.max_tokens <= kContext);
        }
      }
      break;
    }
    case 2:
      check_error(api::answer_tokenize(body, byte_model(), 0));
      break;
    case 6:
      check_error(api::answer_count_tokens(body, byte_model(), 0));
      break;
    case 7:
      check_error(api::answer_render(api::Endpoint::kChat, body, byte_model(), 0, "id"));
      break;
    default:
      check_error(api::answer_detokenize(body, byte_model(), 0));
      break;
  }
  return 0;
}
