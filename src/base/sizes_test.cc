// Sizes read and print as people write them, and nonsense is refused by name.
#include "base/sizes.h"

#include <gtest/gtest.h>

namespace base {
namespace {

TEST(Sizes, ParsesNumbersWithBinaryUnits) {
  EXPECT_EQ(parse_bytes("4096").value(), 4096);
  EXPECT_EQ(parse_bytes("24GiB").value(), 24LL << 30);
  EXPECT_EQ(parse_bytes("1.5 MiB").value(), 3 << 19);
  EXPECT_EQ(parse_bytes("0KiB").value(), 0);
}

TEST(Sizes, RefusesEverythingElseByName) {
  for (const char* text :
       {"", "GiB", "-1GiB", "12 parsecs", "12GB", "nan", "1e300TiB", "9999999999TiB"}) {
    Result<int64_t> result = parse_bytes(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_NE(result.error().message.find(text), std::string::npos);
  }
}

TEST(Sizes, FormatsThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(29273600), "27.9 MiB");
  EXPECT_EQ(format_bytes(3LL << 29), "1.50 GiB");
}

}  // namespace
}  // namespace base
