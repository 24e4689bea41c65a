// The digest is the same for the same weights, and another one when a bit, a name, a type or a
// shape differs.
#include "apps/model_digest.h"

#include <gtest/gtest.h>

namespace apps {
namespace {

struct Weights {
  Weights() : bytes(64, std::byte{3}) {
    files.tensors["a"] = {
        .type = core::DType::kF32, .shape = {4, 2}, .bytes = std::span(bytes).first(32)};
    files.tensors["b"] = {
        .type = core::DType::kF32, .shape = {8}, .bytes = std::span(bytes).last(32)};
  }
  std::vector<std::byte> bytes;
  load::ModelFiles files;
};

TEST(ModelDigest, TellsModelsApart) {
  const std::string digest = model_digest(Weights().files);
  EXPECT_EQ(digest.size(), 32u);
  EXPECT_EQ(model_digest(Weights().files), digest);
  for (const size_t at : {0u, 31u, 32u, 63u}) {
    Weights w;
    w.bytes[at] ^= std::byte{1};
    EXPECT_NE(model_digest(w.files), digest) << at;
  }
  Weights shape, type, name, rope, window;
  shape.files.tensors["a"].shape = {2, 4};
  EXPECT_NE(model_digest(shape.files), digest);
  type.files.tensors["b"].type = core::DType::kBF16;
  EXPECT_NE(model_digest(type.files), digest);
  name.files.tensors["c"] = name.files.tensors["b"];
  name.files.tensors.erase("b");
  EXPECT_NE(model_digest(name.files), digest);
  rope.files.config.rope.factor = 4.0000001;
  EXPECT_NE(model_digest(rope.files), digest);
  window.files.config.windows.kinds = {{0, 512}};
  EXPECT_NE(model_digest(window.files), digest);
}

}  // namespace
}  // namespace apps
