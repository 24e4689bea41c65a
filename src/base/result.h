// Result<T>: a value, or an Error with one of eight codes and a message for people.
//
// For what the outside got wrong (files, requests, limits). A message says what, which object, what
// was expected and found, and where it helps what to do next. Nothing of ours throws; exceptions of
// third-party code stop at the wrapper around it.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace base {

// api/ maps each code to one HTTP status (docs/errors.md); add one there too.
enum class Code {
  kInvalidArgument,  // the caller's data is wrong
  kNotFound,         // a named thing does not exist
  kUnsupported,      // understood, but not implemented
  kTooLarge,         // over a stated limit
  kOverloaded,       // bounded queue full; later may work
  kCancelled,        // the caller asked to stop
  kIo,               // a file, socket or device failed
  kInternal,         // a bug of ours that could be contained
};

const char* code_name(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string message;
};

template <typename... Args>
[[nodiscard]] Error error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // REQUIRES: ok().
  T& value() & {
    CHECK(ok(), "{}", std::get<1>(state_).message);
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(ok(), "{}", std::get<1>(state_).message);
    return std::get<0>(state_);
  }
  T&& value() && {
    CHECK(ok(), "{}", std::get<1>(state_).message);
    return std::get<0>(std::move(state_));
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

  // REQUIRES: !ok().
  const Error& error() const& {
    CHECK(!ok());
    return std::get<1>(state_);
  }
  Error&& error() && {
    CHECK(!ok());
    return std::get<1>(std::move(state_));
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  void value() const { CHECK(ok_, "{}", error_.message); }
  const Error& error() const& {
    CHECK(!ok_);
    return error_;
  }
  Error&& error() && {
    CHECK(!ok_);
    return std::move(error_);
  }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace base

#define BASE_CONCAT_INNER(a, b) a##b
#define BASE_CONCAT(a, b) BASE_CONCAT_INNER(a, b)

// Returns the error of `expression` (a Result) from the enclosing function.
#define RETURN_IF_ERROR(expression)                                                 \
  do {                                                                              \
    auto result_of_expression = (expression);                                       \
    if (!result_of_expression.ok()) return std::move(result_of_expression).error(); \
  } while (false)

// ASSIGN_OR_RETURN(auto x, f()): x is the value of f(), or the enclosing function returns its
// error.
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_INNER(BASE_CONCAT(result_at_line_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                   \
  if (!result.ok()) return std::move(result).error();           \
  declaration = std::move(result).value()
