// What an executor takes of the device's memory is what was planned for it: counted where it is
// allocated, for each way of keeping and moving pages.
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "device/cuda/memory_count.h"
#include "gpu/tiny_cuda.h"
#include "model/cuda/weights.h"

namespace exec {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int32_t kBlocks = 96, kRows = 48;

class FixedTap final : public SelectionTap {
 public:
  bool watches() const override { return false; }
  void saw(const SelectionPlace&, std::span<const int32_t>) override {}
  int32_t choose(const SelectionPlace&, int32_t*, int32_t count) const override { return count; }
};

// As engine/memory_plan.h sums it up.
int64_t planned_kv_bytes(const cuda::CudaExecutorOptions& o) {
  const KvBytes bytes = kv_bytes(o.kv);
  const int32_t blocks_with_stats = o.kv.is_sparse() ? o.num_blocks : 0;
  int64_t total = bytes.slots(o.kv.max_num_seqs) + bytes.open_pages + bytes.scratch +
                  blocks_with_stats * bytes.block_stats;
  if (!o.tier) return total + o.num_blocks * bytes.block_pages;
  total += bytes.slot_tier * o.kv.max_num_seqs + bytes.dense_lists + bytes.tier_tables +
           o.tier->num_frames * bytes.block_pages + o.tier->scratch_frames * o.kv.page.page_bytes();
  return total + (o.prefill.activation_pages > 0 ? o.prefill.bytes(o.kv) : 0);
}

class DeviceMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = device::cuda::find_gpu();
    ASSERT_TRUE(gpu.ok()) << gpu.error().message;
    gpu_ = std::move(gpu).value();
  }

  static cuda::CudaTierOptions tier(core::LoadMethod load, core::SaveMethod save) {
    cuda::CudaTierOptions tier{.num_homes = kBlocks, .num_frames = kRows, .scratch_frames = 64};
    tier.transfers.load = load;
    tier.transfers.save = save;
    return tier;
  }

  void expect_as_planned(const TinyShape& shape, cuda::CudaExecutorOptions o) const {
    load::ModelFiles files;
    files.config = shape.config(TinyModel::kHeadDim);
    load::make_dummy_weights("tiny", 5, files).value();
    const model::cuda::DecoderLimits limits{.rows_max = shape.rows_max,
                                            .logits_rows_max = o.kv.logits_rows_max()};
    const int64_t planned =
        model::cuda::Decoder::workspace_bytes(files.config, limits, gpu_.num_sms) +
        cuda::CudaExecutor::staging_bytes(files.config, o, gpu_.num_sms) + planned_kv_bytes(o);
    const int64_t weights = model::cuda::weight_bytes(files, model::WeightsAs::kBf16);

    const int64_t before = device::cuda::device_memory().held();
    {
      base::ThreadPool pool(2);
      auto stream = std::make_unique<device::cuda::Stream>(device::cuda::Stream::create().value());
      auto decoder = model::cuda::Decoder::create(gpu_, *stream, pool, files, limits, {}).value();
      const auto executor =
          cuda::CudaExecutor::create(gpu_, std::move(stream), std::move(decoder), o).value();
      core::StepResult result;
      ASSERT_TRUE(executor->run({}, {}, &result).ok());
      const int64_t counted = device::cuda::device_memory().peak() - before - weights;
      EXPECT_EQ(result.kv.device_bytes_peak, counted + before);
      EXPECT_LE(counted, planned);
      EXPECT_GE(counted, planned - kMiB);
    }
    EXPECT_EQ(device::cuda::device_memory().held(), before);
  }

  static cuda::CudaExecutorOptions options(const TinyShape& shape) {
    return TinyModel::options(shape, kBlocks);
  }

  device::cuda::GpuInfo gpu_;
};

TEST_F(DeviceMemoryTest, WithoutAHostTier) {
  for (const int32_t budget : {0, 64}) {
    for (const auto type : {core::DType::kBF16, core::DType::kI8}) {
      SCOPED_TRACE(std::to_string(budget) + " " + std::string(core::info(type).name));
      TinyShape shape;
      shape.budget_tokens = budget;
      shape.kv_type = type;
      expect_as_planned(shape, options(shape));
    }
  }
}

TEST_F(DeviceMemoryTest, OfEachMethodOfTransfer) {
  using core::LoadMethod;
  using core::SaveMethod;
  for (const auto& [load, save] : {std::pair{LoadMethod::kUva, SaveMethod::kExtents},
                                   {LoadMethod::kMemcpy, SaveMethod::kMemcpy},
                                   {LoadMethod::kUva, SaveMethod::kGpuDirect},
                                   {LoadMethod::kStaged, SaveMethod::kStaged}}) {
    SCOPED_TRACE(std::string(core::name(load)) + " " + std::string(core::name(save)));
    const TinyShape shape;
    cuda::CudaExecutorOptions o = options(shape);
    o.tier = tier(load, save);
    expect_as_planned(shape, o);
    o.prefill = {.activation_pages = 64, .model_dim = shape.config(TinyModel::kHeadDim).model_dim};
    o.tier->granularity = core::SaveGranularity::kStep;
    expect_as_planned(shape, o);
  }
}

TEST_F(DeviceMemoryTest, OfDenseLayersStreamingHeadsAndReplayedSelections) {
  TinyShape shape;
  shape.dense_layers = 1;
  cuda::CudaExecutorOptions o = options(shape);
  o.tier = tier(core::LoadMethod::kUva, core::SaveMethod::kExtents);
  expect_as_planned(shape, o);
  const FixedTap tap;
  o.tap = &tap;
  expect_as_planned(shape, o);

  shape.heads.num_layers = TinyShape::kLayers;
  shape.heads.num_kv_heads = TinyShape::kKvHeads;
  for (int i = 0; i < TinyShape::kLayers; ++i) {
    shape.heads.kinds.push_back({});
    shape.heads.kinds.push_back({.sink = 16, .local = 32});
  }
  o = options(shape);
  o.tier = tier(core::LoadMethod::kUva, core::SaveMethod::kExtents);
  o.tier->home_streaming_heads = true;
  o.tier->granularity = core::SaveGranularity::kStep;
  expect_as_planned(shape, o);
}

}  // namespace
}  // namespace exec
