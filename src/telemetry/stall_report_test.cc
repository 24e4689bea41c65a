// Goal: the report names the books and every thread. Method: a snapshot by hand; this process.
#include "telemetry/stall_report.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "base/thread_name.h"

namespace telemetry {
namespace {

TEST(StallReport, NamesTheBooksAndTheThreads) {
  core::EngineSnapshot s;
  s.requests_running = 3;
  s.requests_waiting = 7;
  s.blocks_in_use = 11;
  std::latch named{1}, done{1};
  std::jthread sleeper([&] {
    base::name_this_thread("sleeper");
    named.count_down();
    done.wait();
  });
  named.wait();
  const std::string text = describe_stall(s);
  done.count_down();
  EXPECT_NE(text.find("3 requests run, 7 wait"), std::string::npos) << text;
  EXPECT_NE(text.find("11 in use"), std::string::npos) << text;
  EXPECT_NE(text.find("stall_report"), std::string::npos) << text;
  EXPECT_NE(text.find(" sleeper: "), std::string::npos) << text;
  EXPECT_NE(text.find(": R "), std::string::npos) << "this one runs: " << text;
  size_t threads = 0;
  for (size_t at = text.find("; thread "); at != std::string::npos; ++threads)
    at = text.find("; thread ", at + 1);
  EXPECT_GE(threads, 2u) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << "the log would escape it";
}

}  // namespace
}  // namespace telemetry
