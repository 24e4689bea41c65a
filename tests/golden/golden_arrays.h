// What tests/golden/make_model_golden.py made, as arrays, and the tokens that it ran.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace golden {

// On a machine that did not build the test: from the folder it runs in.
inline std::string data(const std::string& path) {
  const std::string built_from = std::string(SPILLWAY_SOURCE_DIR) + "/" + path;
  return std::filesystem::exists(built_from) ? built_from : path;
}

template <typename T>
std::vector<T> read_array(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// tokens() of the script.
inline std::vector<int32_t> golden_tokens(int32_t count, int32_t vocab) {
  std::vector<int32_t> ids;
  for (int32_t i = 0, x = 1; i < count; ++i) ids.push_back(x = (5 * x + 7 + i) % vocab);
  return ids;
}

inline float worst_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float d = std::fabs(a[i] - b[i]);
    if (!(d <= worst)) worst = d;  // NaN sticks
  }
  return worst;
}

}  // namespace golden
