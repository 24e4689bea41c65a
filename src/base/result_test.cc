// Result carries either a value or an error, and the macros hand errors up unchanged.
#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace base {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return error(Code::kInvalidArgument, "{} is odd", x);
  return x / 2;
}

Result<int> quarter(int x) {
  ASSIGN_OR_RETURN(int h, half(x));
  ASSIGN_OR_RETURN(int q, half(h));
  return q;
}

Result<void> check_even(int x) {
  RETURN_IF_ERROR(half(x));
  return {};
}

TEST(Result, CarriesValueOrError) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_EQ(quarter(6).error().code, Code::kInvalidArgument);
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_EQ(check_even(7).error().message, "7 is odd");
}

TEST(Result, MovesItsValueOut) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  std::unique_ptr<int> p = std::move(result).value();
  EXPECT_EQ(*p, 5);
}

TEST(ResultDeathTest, ValueOfAnErrorStopsWithItsMessage) {
  EXPECT_DEATH((void)half(3).value(), "3 is odd");
}

}  // namespace
}  // namespace base
