// Goal: numbers that fit stay as they are written, others become the double that is nearest, and
// nothing else changes. Judged by strtod.
#include "api/big_numbers.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>

namespace api {
namespace {

TEST(BigNumbers, WhatFitsStays) {
  for (const std::string text :
       {R"({"a":[0,-1,18446744073709551615,-9223372036854775808,1.5,-2e3,1E+300],"b":"1e999"})",
        R"("\"99999999999999999999\\",99)", "", "-", "01", "1.", "1e", "--1", "[1,", "1e+",
        "nan"}) {
    EXPECT_EQ(with_numbers_rounded(text), text);
  }
}

TEST(BigNumbers, WhatDoesNotIsRounded) {
  const auto max = std::numeric_limits<double>::max();
  const auto rounded = [](const std::string& literal) {
    const std::string text = with_numbers_rounded("[" + literal + ",1]");
    EXPECT_TRUE(text.starts_with("[") && text.ends_with(",1]")) << text;
    return std::strtod(text.c_str() + 1, nullptr);
  };
  EXPECT_EQ(rounded("18446744073709551616"), 18446744073709551616.0);
  EXPECT_EQ(rounded("-9223372036854775809"), -9223372036854775809.0);
  EXPECT_EQ(rounded("1" + std::string(30, '0')), 1e30);
  EXPECT_EQ(rounded("1e400"), max);
  EXPECT_EQ(rounded("-1E400"), -max);
  EXPECT_EQ(rounded(std::string(400, '9')), max);
  EXPECT_EQ(rounded("1e-400"), 0.0);
  EXPECT_EQ(rounded("-1.5E-999"), 0.0);
  // The exponent's sign does not say which: the digits count too.
  const std::string zeros(400, '0');
  EXPECT_EQ(rounded("0." + zeros + "1"), 0.0);
  EXPECT_EQ(rounded("0." + zeros + "1e+50"), 0.0);
  EXPECT_EQ(rounded("1" + zeros + "e-5"), max);
  EXPECT_EQ(rounded("-1" + zeros + ".5E-5"), -max);
  EXPECT_EQ(rounded("1e" + std::string(30, '9')), max);
  EXPECT_EQ(rounded("1e-" + std::string(30, '9')), 0.0);
}

}  // namespace
}  // namespace api
