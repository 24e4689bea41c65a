// Lines for programs: events with fields, and the format of all lines.
//
//   base::log_event(spdlog::level::info, "request", base::LogFields().add("id", id));
//
// As text (`12:00:00.000 I request id=...`) or one JSON object a line ({"time", "level", "message",
// and the fields of an event}). Whatever a message holds, it stays one line of valid UTF-8: control
// characters are escaped. Beside base/log.h, which nearly everything includes. Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/result.h"

namespace base {

// format: text or json. Errors: kInvalidArgument for another word. Thread: the first, before others
// log.
Result<void> set_log_format(std::string_view format);
// Whether lines are JSON: then nothing else belongs on standard error.
bool logs_json();

// Names and values of an event, in the order in which they are shown. Names are our own literals.
class LogFields {
 public:
  LogFields();  // for the format that is set
  LogFields& add(std::string_view name, std::string_view value);
  LogFields& add(std::string_view name, int64_t value);
  LogFields& add(std::string_view name, double value);  // three digits behind the point
  const std::string& text() const { return text_; }

 private:
  void add_name(std::string_view name);
  const bool json_;
  std::string text_;  // ` name=value ...`, or `,"name":value,...`
};

// A line with fields that programs read, such as one a request.
void log_event(spdlog::level::level_enum level, std::string_view name, const LogFields& fields);

// The line of a message in a format, without its end: what the logger writes. For tests.
std::string log_line(bool json, spdlog::level::level_enum level, std::string_view message,
                     const LogFields* fields);

}  // namespace base
