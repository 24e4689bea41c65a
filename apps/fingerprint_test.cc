// Pages on disk are shared by whoever would have made the same bits: on a GPU not by servers with
// and without --deterministic, on the CPU by both. With a GPU that only has a name.
#include "apps/fingerprint.h"

#include <gtest/gtest.h>

namespace apps {
namespace {

class NamedGpu final : public Gpu {
 public:
  std::string name() const override { return "a GPU"; }
  std::string arch() const override { return "sm_0"; }
  base::Result<void> check(const core::ModelConfig&) const override { return {}; }
  base::Result<model::WeightsAs> choose_weights(const load::ModelFiles&, model::WeightsAs asked,
                                                bool, int32_t) const override {
    return asked;
  }
  engine::MemorySizes memory(const load::ModelFiles&, const GpuExecutorOptions&) const override {
    return {};
  }
  int64_t taken_bytes() const override { return 0; }
  base::Result<std::unique_ptr<exec::Executor>> make_executor(const load::ModelFiles&,
                                                              base::ThreadPool&,
                                                              const GpuExecutorOptions&,
                                                              const model::LoadProgress&) override {
    return base::error(base::Code::kUnsupported, "it only has a name");
  }
};

House a_house(std::shared_ptr<Gpu> gpu) {
  House house;
  house.files = std::make_shared<load::ModelFiles>();
  house.gpu = std::move(gpu);
  return house;
}

TEST(Fingerprint, GpusWithAndWithoutDeterminismShareNoPages) {
  const House house = a_house(std::make_shared<NamedGpu>());
  EXPECT_NE(lasting_fingerprint(house, true), lasting_fingerprint(house, false));
  for (const bool deterministic : {true, false}) {
    const std::string again =
        lasting_fingerprint(a_house(std::make_shared<NamedGpu>()), deterministic);
    EXPECT_EQ(lasting_fingerprint(house, deterministic), again);
  }
}

TEST(Fingerprint, CpusShareThemEitherWay) {
  const House house = a_house(nullptr);
  EXPECT_EQ(lasting_fingerprint(house, true), lasting_fingerprint(house, false));
}

TEST(Fingerprint, TellsWeightsAndBackEndsApart) {
  const House cpu = a_house(nullptr);
  House gpu = a_house(std::make_shared<NamedGpu>());
  EXPECT_NE(lasting_fingerprint(cpu, false), lasting_fingerprint(gpu, false));
  const std::string plain = lasting_fingerprint(gpu, true);
  gpu.weights = model::WeightsAs::kFp8;
  EXPECT_NE(lasting_fingerprint(gpu, true), plain);
}

}  // namespace
}  // namespace apps
