#include "grammar/library_log.h"

#include <utility>

namespace grammar {
namespace {

constexpr size_t kLinesMax = 16;
thread_local Warnings* current = nullptr;

}  // namespace

Warnings::Warnings() {
  current = this;
}

Warnings::~Warnings() {
  current = nullptr;
}

void Warnings::add(std::string line) {
  if (lines_.size() < kLinesMax) lines_.push_back(std::move(line));
}

}  // namespace grammar

// The library calls these when it is built with XGRAMMAR_LOG_CUSTOMIZE.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

void LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message) {
  throw grammar::LibraryError(message);
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int level,
                    const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && grammar::current != nullptr) grammar::current->add(message);
}

}  // namespace xgrammar
