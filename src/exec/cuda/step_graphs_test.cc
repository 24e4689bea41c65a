// Graphs of steps with a stream that counts and a GPU that refuses on demand: every step runs
// exactly once whatever fails, a kind that found no graph stays eager, and others go on.
#include "exec/cuda/step_graphs.h"

#include <gtest/gtest.h>

namespace exec::cuda {
namespace {

struct CountingStream {
  bool captures = false;
  int ran = 0;       // steps
  int captured = 0;  // calls of enqueue into a capture
  bool capture_fails = false, launch_fails = false;
};

// Replays one step.
class CountingGraph {
 public:
  static base::Result<CountingGraph> capture(CountingStream& stream,
                                             const std::function<void()>& work) {
    stream.captures = true;
    work();
    stream.captures = false;
    if (stream.capture_fails) return base::error(base::Code::kInternal, "out of memory");
    CountingGraph made;
    made.is_empty_ = false;
    return made;
  }
  bool empty() const { return is_empty_; }
  base::Result<void> try_launch(CountingStream& stream) const {
    if (stream.launch_fails) return base::error(base::Code::kInternal, "out of memory");
    ++stream.ran;
    return {};
  }

 private:
  bool is_empty_ = true;
};

constexpr GraphKey kOne{1, false, false, false}, kTwo{2, false, false, false};

class StepGraphsTest : public testing::Test {
 protected:
  // One step: whether it was replayed.
  bool step(const GraphKey& key = kOne) {
    const int before = stream_.ran;
    const auto replayed = graphs_.run(stream_, key, [&] { return enqueue(); });
    EXPECT_TRUE(replayed.ok());
    EXPECT_EQ(stream_.ran, before + 1) << "a step ran twice or not at all";
    return replayed.ok() && *replayed;
  }
  base::Result<void> enqueue() {
    if (enqueue_fails_) return base::error(base::Code::kInternal, "half a step");
    ++(stream_.captures ? stream_.captured : stream_.ran);
    return {};
  }

  CountingStream stream_;
  StepGraphs<CountingGraph> graphs_;
  bool enqueue_fails_ = false;
};

TEST_F(StepGraphsTest, AKindIsCapturedWhenItIsWarmAndThenReplayed) {
  EXPECT_FALSE(step());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(step());
  EXPECT_EQ(stream_.captured, 1);
  EXPECT_FALSE(step(kTwo));
  EXPECT_TRUE(step(kTwo));
  EXPECT_EQ(stream_.captured, 2);
}

TEST_F(StepGraphsTest, WithoutAGraphAKindStaysEager) {
  EXPECT_FALSE(step());
  stream_.capture_fails = true;
  EXPECT_FALSE(step());
  stream_.capture_fails = false;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(step());
  EXPECT_EQ(stream_.captured, 1) << "it was tried again";
  EXPECT_FALSE(step(kTwo));
  EXPECT_TRUE(step(kTwo));
}

TEST_F(StepGraphsTest, AGraphThatCannotBeLaunchedIsGivenUp) {
  for (int i = 0; i < 3; ++i) step();
  stream_.launch_fails = true;
  EXPECT_FALSE(step());
  stream_.launch_fails = false;
  EXPECT_FALSE(step());
}

TEST_F(StepGraphsTest, ForgettingKeepsWhatHadNoRoom) {
  EXPECT_FALSE(step());
  EXPECT_TRUE(step());
  EXPECT_FALSE(step(kTwo));
  stream_.capture_fails = true;
  EXPECT_FALSE(step(kTwo));
  stream_.capture_fails = false;
  graphs_.forget();
  EXPECT_FALSE(step());  // warms up again
  EXPECT_TRUE(step());
  EXPECT_EQ(stream_.captured, 3);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(step(kTwo));
}

TEST_F(StepGraphsTest, AStepThatCannotBeEnqueuedIsAnErrorAndNoGraph) {
  EXPECT_FALSE(step());
  enqueue_fails_ = true;
  const auto failed = graphs_.run(stream_, kOne, [&] { return enqueue(); });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "half a step");
  EXPECT_EQ(stream_.ran, 1);
  enqueue_fails_ = false;
  EXPECT_FALSE(step());
}

}  // namespace
}  // namespace exec::cuda
