// Attention beside a gather has the bits of attention behind it: pages that were missed are NaN
// until they come, from nothing missed to everything, by both kernels that can tell, launched and
// replayed. That it runs beside the gather is shown by one that sends nothing before the rows that
// miss nothing are through.
#include <gtest/gtest.h>

#include <string>

#include "exec/cuda/overlap_world.h"
#include "ops/cuda/gpu_fixture.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/page_arrivals.cuh"

namespace exec::cuda {
namespace {

using ops::cuda::kPageIsHere;
using store::cuda::GatherArgs;

constexpr int64_t kHomesBytes = 16 << 20;

struct Gather {
  const char* name;
  void (*run)(cudaStream_t stream, const GatherArgs& args);
  int blocks, cluster_blocks;
  bool own_sms;
  int64_t bytes_in_flight;
};
// As a step uses them, and slow ones.
constexpr Gather kGathers[] = {{"bulk", store::cuda::gather_bulk, 6, 2, true, 0},
                               {"slow bulk", store::cuda::gather_bulk, 1, 1, false, 4096},
                               {"uva", store::cuda::gather_uva, 16, 1, true, 0},
                               {"slow uva", store::cuda::gather_uva, 2, 1, false, 4096}};

class OverlapTest : public ops::cuda::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (HasFatalFailure()) return;
    if (!gpu_.is_hopper()) GTEST_SKIP() << "kernels do not overlap on this GPU";
    homes_ = device::cuda::PinnedBuffer::allocate(kHomesBytes, "homes").value();
    ops::cuda::fill_random(stream(), homes_.as<__nv_bfloat16>(), kHomesBytes / 2, 3);
    synchronize();
  }

  OverlapWorld world(const OverlapShape& shape, uint32_t seed) {
    return {stream_,      shape, homes_.data(), kHomesBytes / shape.page().page_bytes(),
            gpu_.num_sms, seed};
  }
  void run_layers(const OverlapShape& shape, const OverlapWorld& w, const Gather& gather,
                  bool beside) {
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      GatherArgs args = w.gather(layer, beside);
      args.num_blocks = gather.blocks, args.cluster_blocks = gather.cluster_blocks;
      args.own_sms = gather.own_sms, args.bytes_in_flight = gather.bytes_in_flight;
      gather.run(stream(), args);
      ops::cuda::decode_attention(stream(), w.attention(layer, beside, beside ? gather.blocks : 0));
    }
  }
  std::vector<uint16_t> run(const OverlapShape& shape, OverlapWorld& w, const Gather& gather,
                            bool beside) {
    w.poison();
    w.arm();
    run_layers(shape, w, gather, beside);
    return w.out();
  }

  device::cuda::PinnedBuffer homes_;
};

void expect_same(const std::vector<uint16_t>& got, const std::vector<uint16_t>& expected) {
  int64_t wrong = 0, nans = 0, first = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    nans += (expected[i] & 0x7f80) == 0x7f80;
    if (got[i] == expected[i]) continue;
    if (wrong++ == 0) first = static_cast<int64_t>(i);
  }
  EXPECT_EQ(nans, 0) << "of those expected";
  EXPECT_EQ(wrong, 0) << "of " << got.size() << ", the first at " << first;
}

const std::vector<OverlapShape> kShapes = {
    {.rows = 1, .listed = 64, .misses = 63},
    {.rows = 5, .listed = 64, .misses = 20, .num_layers = 3},
    {.rows = 12, .listed = 64, .misses = 63, .is_random = false, .num_layers = 2},
    {.rows = 3,
     .num_q_heads = 6,
     .num_kv_heads = 3,
     .head_dim = 64,
     .page_tokens = 16,
     .listed = 67,
     .misses = 66,
     .num_layers = 2},
    {.rows = 2,
     .num_q_heads = 16,
     .num_kv_heads = 1,
     .head_dim = 256,
     .page_tokens = 64,
     .listed = 33,
     .misses = 7},
    {.rows = 2, .num_q_heads = 2, .num_kv_heads = 2, .listed = 1},
    {.rows = 7, .listed = 64, .misses = 0, .num_layers = 4},
    // More rows than a launch of attention takes.
    {.rows = 300, .num_q_heads = 8, .head_dim = 64, .page_tokens = 16, .listed = 5, .misses = 4}};

class OverlapShapeTest : public OverlapTest, public testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(Shapes, OverlapShapeTest, testing::Range(size_t{0}, kShapes.size()));

TEST_P(OverlapShapeTest, HasTheBitsOfAttentionBehindTheGather) {
  const OverlapShape& shape = kShapes[GetParam()];
  auto seed = static_cast<uint32_t>(GetParam() * std::size(kGathers));
  for (const Gather& gather : kGathers) {
    SCOPED_TRACE(testing::Message()
                 << gather.name << ", " << shape.rows << " rows, D " << shape.head_dim << ", "
                 << shape.misses << " of " << shape.listed << " missed, seed " << ++seed);
    OverlapWorld w = world(shape, seed);
    const auto expected = run(shape, w, gather, false);
    for (int repeat = 0; repeat < 3; ++repeat) {
      expect_same(run(shape, w, gather, true), expected);
      const auto progress = w.progress();
      EXPECT_EQ(progress.begun, 0);
      EXPECT_EQ(progress.blocks_done, 0);
      const auto page_bytes = static_cast<int32_t>(shape.page().page_bytes());
      int64_t came = 0;
      for (const int32_t bytes : w.arrivals()) {
        if (bytes == kPageIsHere) continue;
        ++came;
        ASSERT_EQ(bytes, page_bytes);
      }
      EXPECT_EQ(came, w.num_missed());
      EXPECT_EQ(w.gather_ns() > 0, came > 0);
      if (HasFailure()) return;
    }
  }
}

TEST_F(OverlapTest, ReplayedEqualsLaunched) {
  const OverlapShape shape = {.rows = 6, .misses = 12, .num_layers = 8};
  OverlapWorld w = world(shape, 77);
  const auto expected = run(shape, w, kGathers[0], false);
  const auto enqueue = [&] { run_layers(shape, w, kGathers[0], true); };
  const auto graph = device::cuda::Graph::capture(stream_, enqueue).value();
  for (int repeat = 0; repeat < 20; ++repeat) {
    w.poison();
    w.arm();
    graph.launch(stream_);
    expect_same(w.out(), expected);
    if (HasFailure()) return;
  }
}

// Sends the pages of the first place when `watched` is no longer what it was, or gives up.
__global__ void send_after(GatherArgs args, const uint16_t* watched, int32_t* gave_up) {
  ops::cuda::wait_for_stream();
  if (threadIdx.x == 0) {
    atomicExch(&args.progress->begun, 1);
    ops::cuda::let_next_start();
    const volatile uint16_t* const seen = watched;
    const long long begin = clock64();
    *gave_up = 0;
    while (*seen == 0xffff && *gave_up == 0) {
      if (clock64() - begin > 1'000'000'000) *gave_up = 1;
    }
  }
  __syncthreads();
  for (int32_t miss = 0; miss < args.num_misses[0]; ++miss) {
    const auto* from =
        reinterpret_cast<const uint4*>(args.homes + args.miss_homes[miss] * args.page_bytes);
    auto* to = reinterpret_cast<uint4*>(args.frames + args.miss_frames[miss] * args.page_bytes);
    for (int64_t i = threadIdx.x; i < args.page_bytes / 16; i += blockDim.x) to[i] = from[i];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      atomicAdd(args.arrived_bytes + args.miss_entries[miss],
                static_cast<int32_t>(args.page_bytes));
    }
  }
}

TEST_F(OverlapTest, RowsThatMissNothingDoNotWait) {
  const OverlapShape shape = {
      .rows = 2, .num_q_heads = 4, .num_kv_heads = 1, .misses = 30, .is_random = false};
  OverlapWorld w = world(shape, 5);
  const auto expected = run(shape, w, kGathers[0], false);
  // The second row's pages are there; the first one's are sent when the second one is through.
  w.poison();
  w.arm();
  auto args = w.gather(0, true);
  args.num_places = 1;
  store::cuda::gather_bulk(stream(), [&] {
    GatherArgs second = w.gather(0, false);
    second.miss_homes += shape.listed, second.miss_frames += shape.listed;
    second.num_misses += 1, second.num_places = 1;
    return second;
  }());
  stream_.fill(args.arrived_bytes + shape.listed, 0x7f, shape.listed * 4);
  auto* const gave_up = poisoned<int32_t>(1);
  synchronize();
  auto attention = w.attention(0, true, 1);
  const auto* const watched =
      reinterpret_cast<const uint16_t*>(attention.out) + attention.out_stride;
  send_after<<<1, 128, 0, stream()>>>(args, watched, gave_up);
  ops::cuda::decode_attention(stream(), attention);
  expect_same(w.out(), expected);
  EXPECT_EQ(download(gave_up, 1)[0], 0) << "the attention began when the gather had ended";
}

}  // namespace
}  // namespace exec::cuda
