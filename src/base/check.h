// Assertions that stay on. A failed CHECK is a bug of ours, never the outside's fault: it prints
// the condition, the place and the values given, and aborts. Conditions that hostile input can
// reach return a Result instead (base/result.h).
//
//   CHECK(row < rows, "row {} of {}", row, rows);
//
// DCHECK is the same in debug builds and nothing in release builds: for inner loops.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace base {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message);

}  // namespace base

#define CHECK(condition, ...)                                                              \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::base::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define DCHECK(condition, ...) \
  do {                         \
  } while (false && (condition))
#else
#define DCHECK(condition, ...) CHECK(condition, __VA_ARGS__)
#endif
