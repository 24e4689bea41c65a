// Requests and arrivals of a load test: the same for the same seed, of the lengths asked for, and
// as the API takes them.
#include "apps/bench_serve_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace apps {
namespace {

using nlohmann::json;
using ::testing::Each;

const std::vector<int32_t> kIds{100, 101, 102, 103, 104, 105, 106, 107};

std::vector<json> bodies(const BenchServeOptions& options, int64_t count, uint32_t stream = 0,
                         const std::vector<int32_t>& ids = kIds) {
  std::vector<json> all;
  const auto requests = make_requests(options, "m\"1", ids, nullptr, count, stream);
  for (const LoadRequest& r : requests.value()) {
    all.push_back(json::parse(r.body));
    if (all.back().contains("prompt") && all.back()["prompt"].is_array()) {
      EXPECT_EQ(r.input_tokens, static_cast<int64_t>(all.back()["prompt"].size()));
    }
  }
  return all;
}

TEST(RandomRequests, AreWhatTheApiTakes) {
  BenchServeOptions options;
  options.input_tokens = 5;
  options.output_tokens = 3;
  const json body = bodies(options, 1)[0];
  EXPECT_EQ(body["model"], "m\"1");
  EXPECT_EQ(body["prompt"].size(), 5u);
  for (const json& id : body["prompt"]) EXPECT_TRUE(id >= 100 && id <= 107);
  EXPECT_EQ(body["max_tokens"], 3);
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_FALSE(body.contains("temperature"));
}

TEST(RandomRequests, OfAChatAreWords) {
  BenchServeOptions options;
  options.backend = "openai-chat";
  options.input_tokens = 4;
  options.temperature = 0.5;
  const json body = bodies(options, 1)[0];
  const std::string content = body["messages"][0]["content"];
  EXPECT_EQ(std::count(content.begin(), content.end(), ' '), 3);
  EXPECT_EQ(body["max_completion_tokens"], 128);
  EXPECT_EQ(body["temperature"], 0.5);
  options.backend = "openai";
  EXPECT_TRUE(bodies(options, 1, 0, {})[0]["prompt"].is_string()) << "without a vocabulary";
}

TEST(RandomRequests, DependOnTheSeedAndTheSetAlone) {
  BenchServeOptions options;
  options.input_tokens = 20;
  const std::vector<json> first = bodies(options, 10);
  EXPECT_EQ(bodies(options, 10), first);
  EXPECT_EQ(std::set<json>(first.begin(), first.end()).size(), 10u) << "all differ";
  EXPECT_NE(bodies(options, 10, /*stream=*/1), first);
  options.seed = uint64_t{1} << 40;
  EXPECT_NE(bodies(options, 10), first);
}

TEST(RandomRequests, SharePrefixAndVaryInLength) {
  BenchServeOptions options;
  options.input_tokens = 10;
  options.output_tokens = 10;
  options.range_ratio = 0.5;
  options.prefix_tokens = 30;
  std::set<size_t> inputs, outputs;
  const std::vector<json> all = bodies(options, 400), warm_up = bodies(options, 1, 1);
  const auto prefix = [](const json& body) {
    const std::vector<int> ids = body["prompt"];
    return std::vector<int>(ids.begin(), ids.begin() + 30);
  };
  for (const json& body : all) {
    EXPECT_EQ(prefix(body), prefix(warm_up[0]));
    inputs.insert(body["prompt"].size() - 30);
    outputs.insert(body["max_tokens"].get<size_t>());
  }
  EXPECT_EQ(*inputs.begin(), 5u);
  EXPECT_EQ(*inputs.rbegin(), 15u);
  EXPECT_EQ(inputs, outputs);
}

TEST(RandomRequests, ThatWouldFillTheMemoryAreRefused) {
  BenchServeOptions options;
  options.input_tokens = 1 << 24;
  const auto result = make_requests(options, "m", kIds, nullptr, 1000, 0);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, base::Code::kTooLarge);
}

TEST(PrefixRequests, ShareEachPrefixEquallyAndNothingElse) {
  BenchServeOptions options;
  options.dataset = "prefix_repetition";
  options.repeated_prefix = 20;
  options.repeated_suffix = 12;
  options.repeated_prefixes = 3;
  options.repeated_output = 5;
  const std::vector<json> all = bodies(options, 30);
  std::map<std::vector<int>, int> prefixes;
  std::set<std::vector<int>> suffixes;
  for (const json& body : all) {
    const std::vector<int> ids = body["prompt"];
    ASSERT_EQ(ids.size(), 32u);
    ++prefixes[{ids.begin(), ids.begin() + 20}];
    suffixes.insert({ids.begin() + 20, ids.end()});
    EXPECT_EQ(body["max_tokens"], 5);
    EXPECT_EQ(body["ignore_eos"], true);
  }
  EXPECT_EQ(prefixes.size(), 3u);
  for (const auto& [prefix, requests] : prefixes) EXPECT_EQ(requests, 10);
  EXPECT_EQ(suffixes.size(), 30u);
  const std::vector<int> warm = bodies(options, 1, /*stream=*/1)[0]["prompt"];
  EXPECT_EQ(prefixes.count({warm.begin(), warm.begin() + 20}), 1u) << "a warm-up warms a prefix";
  EXPECT_EQ(suffixes.count({warm.begin() + 20, warm.end()}), 0u);
  options.repeated_prefix = 1 << 24;
  EXPECT_FALSE(make_requests(options, "m", kIds, nullptr, 1000, 0).ok());
}

TEST(FileRequests, StartAgainWhenTheFileEnds) {
  const std::string path = ::testing::TempDir() + "bench_serve_requests.jsonl";
  std::ofstream(path) << "{\"prompt\":\"a\\n\",\"output_tokens\":4}\n\n{\"prompt\":\"b\"}\n";
  BenchServeOptions options;
  options.dataset = "custom";
  options.dataset_path = path;
  const std::vector<json> all = bodies(options, 5);
  std::remove(path.c_str());
  EXPECT_EQ(all[0]["prompt"], "a\n");
  EXPECT_EQ(all[0]["max_tokens"], 4);
  EXPECT_FALSE(all[0].contains("ignore_eos"));
  EXPECT_EQ(all[1]["max_tokens"], 256);
  EXPECT_EQ(all[2], all[0]);
  EXPECT_EQ(all[3], all[1]);
  EXPECT_EQ(all[4], all[0]);
}

TEST(Arrivals, KeepTheRateAndTheirShape) {
  EXPECT_THAT(arrival_times(3, INFINITY, 1, 0), Each(0.0));
  const std::vector<double> poisson = arrival_times(4000, 20, 1, 7);
  EXPECT_EQ(poisson, arrival_times(4000, 20, 1, 7));
  EXPECT_TRUE(std::is_sorted(poisson.begin(), poisson.end()));
  EXPECT_NEAR(poisson.back(), 200, 1e-9);
  for (const double time : arrival_times(3, 20, 1e-3, 7)) EXPECT_TRUE(time >= 0 && time <= 0.15001);
  // Squared coefficient of variation of gaps of shape k is 1 / k.
  for (const double shape : {0.25, 1.0, 16.0}) {
    const std::vector<double> times = arrival_times(20'000, 1, shape, 3);
    double squares = 0, last = 0;
    for (const double time : times) squares += (time - last - 1) * (time - last - 1), last = time;
    EXPECT_NEAR(squares / 20'000 * shape, 1, 0.15) << shape;
  }
}

}  // namespace
}  // namespace apps
