// Calibration on longneedle: the heads that carry far facts have the largest errors, so the choice
// of calibration keeps answers and distribution better than as many heads drawn at random; and the
// documents are the same for the same seed.
#include "apps/head_calibration.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "apps/house.h"

namespace apps {
namespace {

constexpr core::HeadKind kStreaming{16, 64};

std::unique_ptr<House> longneedle() {
  ServingOptions options;
  options.model = std::string(SPILLWAY_SOURCE_DIR) + "/models/longneedle/longneedle-q8_0.gguf";
  options.threads = 2;
  return open_house(options).value();
}

TEST(CalibrationText, SameSeedSameDocument) {
  const auto house = longneedle();
  CalibrationRandom one(7), same(7), other(8);
  const CalibrationDocument a = make_calibration_document(*house->tokenizer, {}, 500, 4, &one);
  const CalibrationDocument b = make_calibration_document(*house->tokenizer, {}, 500, 4, &same);
  const CalibrationDocument c = make_calibration_document(*house->tokenizer, {}, 500, 4, &other);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_NE(a.tokens, c.tokens);
  EXPECT_NEAR(a.questions_begin, 500, 60);
  ASSERT_EQ(a.answers.size(), 4u);
  // Each answer stands in the long text too.
  const std::string text = house->tokenizer->decode(
      std::span(a.tokens).first(static_cast<size_t>(a.questions_begin)), true);
  for (const CalibrationDocument::Answer& answer : a.answers) {
    const std::string found = house->tokenizer->decode(
        std::span(a.tokens).subspan(static_cast<size_t>(answer.begin),
                                    static_cast<size_t>(answer.end - answer.begin)),
        true);
    EXPECT_NE(text.find(found.substr(1)), std::string::npos) << found;
  }
}

TEST(CalibrationText, OwnLinesAreUsed) {
  const auto house = longneedle();
  const std::vector<std::string> lines = {"alpha beta gamma", "delta epsilon"};
  CalibrationRandom random(7);
  const CalibrationDocument a =
      make_calibration_document(*house->tokenizer, lines, 200, 1, &random);
  EXPECT_NE(house->tokenizer->decode(a.tokens, true).find("delta epsilon\nalpha beta gamma\n"),
            std::string::npos);
}

TEST(HeadCalibration, KeepsWhatRandomChoicesLose) {
  const auto house = longneedle();
  const core::ModelConfig& c = house->files->config;
  CalibrationRandom random(3);
  std::vector<CalibrationDocument> documents;
  for (int i = 0; i < 2; ++i)
    documents.push_back(make_calibration_document(*house->tokenizer, {}, 800, 8, &random));
  const auto calibration =
      HeadCalibration::create(*house->stream, ops::op_table(house->isa), *house->files, 2048)
          .value();
  const std::vector<double> errors = calibration->errors(std::span(documents).first(1), kStreaming);
  ASSERT_EQ(errors.size(), 16u);
  EXPECT_GT(*std::max_element(errors.begin(), errors.end()), 0.5);
  std::vector<core::HeadKinds> choices = {
      least_harmed(c, errors, 0, kStreaming), least_harmed(c, errors, 8, kStreaming),
      random_heads(c, 8, kStreaming, &random), random_heads(c, 8, kStreaming, &random)};
  EXPECT_FALSE(choices[0].any_streaming());
  for (size_t i = 1; i < choices.size(); ++i)
    EXPECT_EQ(std::count(choices[i].kinds.begin(), choices[i].kinds.end(), kStreaming), 8);
  std::vector<HeadsQuality> quality(choices.size());
  HeadsQuality dense;
  calibration->judge(documents[1], choices, quality, &dense);
  EXPECT_EQ(dense.divergence, 0.0);
  EXPECT_GE(dense.right, 6);
  EXPECT_EQ(quality[0].divergence, 0.0);
  EXPECT_EQ(quality[0].right, dense.right);
  EXPECT_LT(quality[1].divergence, quality[2].divergence);
  EXPECT_LT(quality[1].divergence, quality[3].divergence);
  EXPECT_GE(quality[1].right, quality[2].right);
}

TEST(HeadCalibration, WindowsOfTheModelAreNoChoice) {
  core::ModelConfig config;
  config.num_layers = 2;
  config.num_kv_heads = 2;
  config.windows = core::window_kinds({true, false}, 2, 512);
  EXPECT_EQ(num_choosable_heads(config), 2);
  const std::vector<double> errors = {0.0, 0.0, 0.2, 0.1};
  const core::HeadKinds chosen = least_harmed(config, errors, 1, kStreaming);
  EXPECT_EQ(chosen.kinds, (std::vector<core::HeadKind>{{}, {}, {}, kStreaming}));
}

}  // namespace
}  // namespace apps
