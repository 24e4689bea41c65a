// Ends calls of XGrammar that take too long: its parser, which nothing else can interrupt, counts
// its work here. cmake/third_party.cmake puts the counting into its source.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>

namespace grammar {

// Thrown out of the call into the library. What the call worked on can only be destroyed.
class WorkLimitReached : public std::exception {
 public:
  const char* what() const noexcept override { return "it takes too long"; }
};

int64_t thread_cpu_us();

// While it lives, the calls of this thread may use `cpu_us` of its time, and none once `cancelled`
// is set. One a thread at a time.
class WorkLimit {
 public:
  explicit WorkLimit(int64_t cpu_us, const std::atomic<bool>* cancelled = nullptr);
  ~WorkLimit();
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;

  // Throws WorkLimitReached.
  void count(size_t states);

 private:
  const int64_t end_cpu_us_;
  const std::atomic<bool>* const cancelled_;
  int64_t until_check_ = 0;  // states; the first is looked at
};

// States that the parser looks at. Without a limit on this thread: nothing.
void count_library_work(size_t states);

}  // namespace grammar
