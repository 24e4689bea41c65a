// spillway generate: one prompt, its continuation printed as it comes, and the speed on standard
// error.
#include <iostream>
#include <optional>

#include "apps/commands.h"
#include "apps/completion.h"
#include "apps/house.h"
#include "apps/read_file.h"
#include "text/detokenizer.h"

namespace apps {
namespace {

base::Result<std::string> read_prompt(const GenerateOptions& options) {
  if (options.prompt_file.empty()) {
    if (options.prompt.empty())
      return base::error(base::Code::kInvalidArgument, "no prompt: give -p TEXT or -f FILE");
    return options.prompt;
  }
  if (options.prompt_file == "-") return read_stream(std::cin, "standard input");
  return read_file(options.prompt_file);
}

base::Result<std::vector<core::TokenId>> encode_prompt(const House& house, bool chat,
                                                       const std::string& prompt) {
  if (!chat) return house.tokenizer->encode(prompt, {.add_special = true, .parse_special = false});
  nlohmann::ordered_json context;
  context["messages"] = {{{"role", "user"}, {"content", prompt}}};
  context["add_generation_prompt"] = true;
  ASSIGN_OR_RETURN(std::string text, render_chat(house, context));
  return house.tokenizer->encode(text, {.add_special = false, .parse_special = true});
}

void print_speed(const Completion& done) {
  const double prefill_s =
      static_cast<double>(done.times.first_token_us - done.times.arrival_us) * 1e-6;
  const double decode_s =
      static_cast<double>(done.times.last_token_us - done.times.first_token_us) * 1e-6;
  const double computed = done.prompt_tokens - done.cached_tokens;
  fmt::print(stderr, "\n[{} prompt tokens in {:.3f} s ({:.0f} tokens/s)", done.prompt_tokens,
             prefill_s, computed / std::max(prefill_s, 1e-9));
  if (done.tokens.size() > 1) {
    fmt::print(stderr, ", {} generated, {:.1f} tokens/s", done.tokens.size(),
               static_cast<double>(done.tokens.size() - 1) / std::max(decode_s, 1e-9));
  }
  fmt::print(stderr, ", finished by {}]\n", core::finish_reason_name(done.reason));
}

}  // namespace

base::Result<void> generate(const GenerateOptions& options) {
  // Before the model: a wrong path need not wait for it.
  ASSIGN_OR_RETURN(const std::string prompt, read_prompt(options));
  ServingOptions serving = options.serving;
  serving.max_num_seqs = 1;
  ASSIGN_OR_RETURN(std::unique_ptr<House> house, build_house(serving, /*print_sizes=*/false));
  if (house->tokenizer == nullptr)
    return base::error(base::Code::kInvalidArgument,
                       "this model has no tokenizer: there is no text to read or write");
  core::Request request;
  request.id = next_request_id();
  ASSIGN_OR_RETURN(request.prompt, encode_prompt(*house, options.chat, prompt));
  if (request.prompt.empty())
    return base::error(base::Code::kInvalidArgument, "the prompt has no tokens");
  const int32_t room = house->engine->context_max() - static_cast<int32_t>(request.prompt.size());
  if (room < 1) {
    const bool tiered = house->sizes.num_frames > 0;
    return base::error(
        base::Code::kTooLarge,
        "the prompt has {} tokens, {} fit: shorten it, or raise --max-model-len, "
        "--device-memory{}",
        request.prompt.size(), house->engine->context_max(),
        tiered ? " or --host-memory" : ", or let pages leave the device with --preset full");
  }
  request.sampling.max_tokens = std::min(options.max_tokens, room);
  request.sampling.temperature = options.temperature;
  request.sampling.seed = options.seed;
  request.arrival_us = now_us();
  text::Detokenizer detokenizer(*house->tokenizer, /*skip_special=*/true);
  auto print = [&](core::TokenId token) {
    fmt::print("{}", detokenizer.push(token));
    std::fflush(stdout);
  };
  ASSIGN_OR_RETURN(Completion done, complete(*house->engine, std::move(request), print));
  fmt::print("{}\n", detokenizer.finish());
  print_speed(done);
  return {};
}

}  // namespace apps
