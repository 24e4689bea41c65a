// What XGrammar has to say comes here instead of to the terminal: errors as exceptions that the
// calls into it (compiler.cc, constraint.cc) catch, warnings as lines kept for the thread's call.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace grammar {

// An error of the library: what, without its source's path and the time.
class LibraryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// While it lives, the library's warnings on this thread: they name what it does not enforce.
class Warnings {
 public:
  Warnings();
  ~Warnings();
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;

  const std::vector<std::string>& lines() const { return lines_; }
  void add(std::string line);

 private:
  std::vector<std::string> lines_;
};

}  // namespace grammar
