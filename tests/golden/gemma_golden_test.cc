// The real Gemma 3 270M says what llama.cpp says (make_gemma_golden.py): the same tokens of each
// prompt and, fed llama.cpp's own greedy tokens one by one, the same choice at every step that the
// peer did not find close. The file comes from `tools/fixtures gemma`; without it the test is
// skipped.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model_runner.h"
#include "text/tokenizer.h"

namespace {

using nlohmann::json;

// The peer rounds activations to 8 bits a block before each quantised matrix, we to 16: logits
// differ by some tenths.
constexpr float kClose = 0.5f;
constexpr int32_t kContext = 2048;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

std::filesystem::path gemma_path() {
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "/" : home) /
         ".cache/spillway/fixtures/gemma/gemma-3-270m-q4_k_m.gguf";
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// How often our choice was the peer's, over the steps that it did not find close.
struct Agreement {
  int32_t clear = 0, clear_same = 0, steps = 0, same = 0;
};

void feed_peers_tokens(golden::Runner& runner, const json& golden, Agreement* agreement) {
  std::vector<int32_t> ids = golden["tokens"].get<std::vector<int32_t>>();
  const int32_t prompt = static_cast<int32_t>(ids.size());
  for (int32_t begin = 0; begin < prompt - 1; begin += 512) {
    const int32_t end = std::min(prompt - 1, begin + 512);
    runner.feed(ids, begin, end, core::RowKind::kPrompt, end);
  }
  for (size_t i = 0; i < golden["greedy"].size(); ++i) {
    const int32_t at = prompt - 1 + static_cast<int32_t>(i);
    const int32_t ours = argmax(runner.feed(ids, at, at + 1, core::RowKind::kDecode, at));
    const int32_t theirs = golden["greedy"][i];
    const bool clear = golden["leads"][i].get<float>() >= kClose;
    agreement->steps += 1;
    agreement->same += ours == theirs;
    agreement->clear += clear;
    agreement->clear_same += clear && ours == theirs;
    ids.push_back(theirs);
  }
}

TEST(Gemma, SaysWhatLlamaCppSays) {
  const std::filesystem::path path = gemma_path();
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << "no " << path.string() << ": run tools/fixtures gemma";
  }
  const std::filesystem::path top = SPILLWAY_SOURCE_DIR;
  const json data = json::parse(read_file(top / "tests/golden/data/gemma_golden.json"));
  golden::Runner runner(path, device::detect_isa(), core::DType::kBF16, 512, kContext);
  ASSERT_TRUE(runner.files().has_tokenizer);
  EXPECT_TRUE(runner.files().tokenizer.chat_template.empty());
  const auto tokenizer = text::Tokenizer::create(runner.files().tokenizer).value();
  Agreement agreement;
  for (const json& golden : data["cases"]) {
    const std::string prompt =
        golden.contains("prompt")
            ? golden["prompt"].get<std::string>()
            : read_file(top / "LICENSE").substr(0, golden["license_bytes"].get<size_t>());
    SCOPED_TRACE(prompt.substr(0, 40));
    EXPECT_EQ(tokenizer->encode(prompt, {}), golden["tokens"].get<std::vector<int32_t>>());
    feed_peers_tokens(runner, golden, &agreement);
  }
  RecordProperty("same", agreement.same);
  RecordProperty("steps", agreement.steps);
  EXPECT_EQ(agreement.clear_same, agreement.clear);
  EXPECT_GE(agreement.clear, 120);
  EXPECT_GE(agreement.same * 100, agreement.steps * 95);
}

}  // namespace
