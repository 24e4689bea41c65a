// The machine's description is sane, buffers are aligned and zero, and bad names are refused.
#include <gtest/gtest.h>

#include "device/buffer.h"
#include "device/cpu.h"

namespace device {
namespace {

TEST(Cpu, DescribesThisMachine) {
  EXPECT_GE(num_physical_cores(), 1);
  EXPECT_GT(memory_available_bytes(), 0);
  EXPECT_EQ(parse_isa("reference").value(), Isa::kReference);
  EXPECT_EQ(parse_isa("sse").error().code, base::Code::kInvalidArgument);
  EXPECT_EQ(parse_isa(isa_name(detect_isa())).value(), detect_isa());
}

TEST(Buffer, IsAlignedZeroAndMovable) {
  Buffer buffer = Buffer::allocate(100, "test").value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
  EXPECT_EQ(buffer.as<uint8_t>()[99], 0);
  Buffer moved = std::move(buffer);
  EXPECT_EQ(moved.size(), 100);
  EXPECT_EQ(Buffer::allocate(0, "nothing")->data(), nullptr);
}

TEST(Buffer, RefusesWhatTheSystemRefuses) {
  auto refused = Buffer::allocate(int64_t{1} << 60, "KV pages");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, base::Code::kTooLarge);
  EXPECT_NE(refused.error().message.find("KV pages"), std::string::npos);
}

}  // namespace
}  // namespace device
