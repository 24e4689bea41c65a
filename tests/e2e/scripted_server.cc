// scripted_server PORT PREFILL_MS PING_MS: the real server around an engine that says nothing for
// PREFILL_MS of each request and then "hi". For tests of what stands between a client and a prompt
// that takes long. Until SIGTERM.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "api/testing.h"

namespace {

void answer_late(api::testing::FakeEngine::Sequence sequence, std::chrono::milliseconds prefill) {
  using api::testing::FakeEngine;
  std::this_thread::sleep_for(prefill);
  FakeEngine::push_start(sequence.request, *sequence.events, 0);
  for (const core::TokenId token : {'h', 'i'})
    FakeEngine::push_token(sequence.request, *sequence.events, token);
  FakeEngine::push_token(sequence.request, *sequence.events, api::testing::kEnd);
  FakeEngine::push_finish(*sequence.events, core::FinishReason::kStop);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: %s PORT PREFILL_MS PING_MS\n", argv[0]), 2;
  const std::chrono::milliseconds prefill(std::atoi(argv[2]));
  api::ServerOptions options = api::testing::test_options();
  options.port = static_cast<uint16_t>(std::atoi(argv[1]));
  options.ping_interval = std::chrono::milliseconds(std::atoi(argv[3]));
  options.handle_signals = true;
  auto made = std::make_unique<api::testing::FakeEngine>();
  api::testing::FakeEngine* engine = made.get();
  engine->hold = true;
  std::jthread script([engine, prefill](const std::stop_token& stop) {
    std::vector<std::jthread> answers;
    while (!stop.stop_requested()) {
      const auto submitted = engine->wait_for_submitted(answers.size() + 1);
      for (size_t i = answers.size(); i < submitted.size(); ++i)
        answers.emplace_back(answer_late, submitted[i], prefill);
    }
  });
  base::set_log_level("error").value();
  api::Server server(options);
  const auto result = server.listen();
  if (!result.ok()) return std::fprintf(stderr, "%s\n", result.error().message.c_str()), 1;
  const auto ended = server.run(
      [&made] { return api::testing::test_backend(std::move(made), text::kDefaultChatTemplate); });
  std::_Exit(ended.ok() ? 0 : 1);  // answers that are still due do not matter
}
