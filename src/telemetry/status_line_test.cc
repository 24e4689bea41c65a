// The status line is made from differences of counters and from gauges; idle servers are quiet.
#include "telemetry/status_line.h"

#include <gtest/gtest.h>

namespace telemetry {
namespace {

TEST(StatusLine, RatesAndGauges) {
  core::EngineSnapshot before, now;
  before.prompt_tokens = 100;
  before.generated_tokens = 10;
  before.prefix_cache_queries = 100;
  now.prompt_tokens = 1100;
  now.generated_tokens = 35;
  now.prefix_cache_queries = 300;
  now.prefix_cache_hits = 50;
  now.requests_running = 2;
  now.requests_waiting = 1;
  now.blocks_total = 8;
  now.blocks_in_use = 1;
  EXPECT_EQ(status_line(before, now, 10.0),
            "prompt 100.0 tok/s, generation 2.5 tok/s, running 2, waiting 1, KV 12.5 %, prefix "
            "hits 25.0 %");
}

TEST(StatusLine, SelectionAndTiersShowWhereTheyRun) {
  core::EngineSnapshot before, now;
  now.requests_running = 1;
  now.kv.pages_selected = 200;
  now.kv.pages_missed = 50;
  EXPECT_TRUE(status_line(before, now, 10.0).ends_with(", 200 pages selected")) << "no host tier";
  now.frames_total = 8;
  now.frames_free = 2;
  EXPECT_NE(status_line(before, now, 10.0)
                .find("200 pages selected, 75.0 % of them on the device, frames 75.0 %"),
            std::string::npos);
}

TEST(StatusLine, IdleIsQuiet) {
  core::EngineSnapshot same;
  same.prompt_tokens = 7;
  EXPECT_EQ(status_line(same, same, 10.0), "");
  core::EngineSnapshot waiting = same;
  waiting.requests_waiting = 1;
  EXPECT_NE(status_line(same, waiting, 10.0), "");
}

}  // namespace
}  // namespace telemetry
