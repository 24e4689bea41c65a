#include "base/log.h"

#include <fmt/chrono.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>

#include "base/log_event.h"

namespace base {
namespace {

std::atomic<bool> g_json{false};

// Bytes of the UTF-8 character at the front of `text`, which is not empty; 0: there is none.
size_t character_bytes(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what is beyond the last code point.
  if ((lead == 0xE0 && at(1) < 0xA0) || (lead == 0xED && at(1) > 0x9F) ||
      (lead == 0xF0 && at(1) < 0x90) || (lead == 0xF4 && at(1) > 0x8F)) {
    return 0;
  }
  return bytes;
}

// As in a JSON string, which text lines use as well for what must not reach a terminal.
void append_escaped(std::string& out, std::string_view text, bool json) {
  while (!text.empty()) {
    const size_t bytes = character_bytes(text);
    const auto c = static_cast<unsigned char>(text.front());
    if (bytes == 0) {
      out += "\xEF\xBF\xBD";  // the replacement character
    } else if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || c == 0x7F) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
    } else if (json && (c == '"' || c == '\\')) {
      out += '\\';
      out += static_cast<char>(c);
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
}

// Messages of this logger are followed by ready fields; a name of another is a plain message.
constexpr std::string_view kEvents = "events";

class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(bool json) : json_(json) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    std::string_view payload(message.payload.data(), message.payload.size());
    // An event's name ends where its fields begin.
    const bool is_event =
        std::string_view(message.logger_name.data(), message.logger_name.size()) == kEvents;
    const size_t name =
        is_event ? std::min(payload.find(json_ ? ',' : ' '), payload.size()) : payload.size();
    const auto now = message.time;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
    const auto level = spdlog::level::to_string_view(message.level);
    std::string line;
    const auto end = std::back_inserter(line);
    if (json_) {
      fmt::format_to(end, R"({{"time":"{:%Y-%m-%dT%H:%M:%S}.{:03}Z","level":"{}","message":")",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms.count() % 1000,
                     std::string_view(level.data(), level.size()));
      append_escaped(line, payload.substr(0, name), true);
      fmt::format_to(end, "\"{}}}\n", payload.substr(name));
    } else {
      fmt::format_to(end, "{:%H:%M:%S}.{:03} {} ",
                     fmt::localtime(std::chrono::system_clock::to_time_t(now)), ms.count() % 1000,
                     spdlog::level::to_short_c_str(message.level));
      append_escaped(line, payload, false);
      line += '\n';
    }
    out.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(json_);
  }

 private:
  const bool json_;
};

struct Loggers {
  std::shared_ptr<spdlog::sinks::stderr_sink_mt> sink =
      std::make_shared<spdlog::sinks::stderr_sink_mt>();
  spdlog::logger lines{"spillway", sink};
  spdlog::logger events{std::string(kEvents), sink};
  Loggers() { sink->set_formatter(std::make_unique<LineFormatter>(false)); }
};

Loggers& loggers() {
  // Never destroyed: threads may log until the process has gone.
  static Loggers& instance = *new Loggers;
  return instance;
}

}  // namespace

spdlog::logger& logger() {
  return loggers().lines;
}

Result<void> set_log_level(std::string_view level) {
  for (const char* known : {"trace", "debug", "info", "warn", "error", "off"}) {
    if (level == known) {
      loggers().lines.set_level(spdlog::level::from_str(std::string(level)));
      loggers().events.set_level(spdlog::level::from_str(std::string(level)));
      return {};
    }
  }
  return error(Code::kInvalidArgument,
               "log level '{}': expected trace, debug, info, warn, error or off", level);
}

Result<void> set_log_format(std::string_view format) {
  if (format != "text" && format != "json") {
    return error(Code::kInvalidArgument, "log format '{}': expected text or json", format);
  }
  g_json = format == "json";
  loggers().sink->set_formatter(std::make_unique<LineFormatter>(g_json));
  return {};
}

bool logs_json() {
  return g_json;
}

LogFields::LogFields() : json_(g_json) {}

void LogFields::add_name(std::string_view name) {
  if (json_) {
    fmt::format_to(std::back_inserter(text_), ",\"{}\":", name);
  } else {
    fmt::format_to(std::back_inserter(text_), " {}=", name);
  }
}

LogFields& LogFields::add(std::string_view name, std::string_view value) {
  add_name(name);
  const bool quoted = json_ || value.empty() || value.find_first_of(" =\"") != value.npos;
  if (quoted) text_ += '"';
  append_escaped(text_, value, quoted);
  if (quoted) text_ += '"';
  return *this;
}

LogFields& LogFields::add(std::string_view name, int64_t value) {
  add_name(name);
  fmt::format_to(std::back_inserter(text_), "{}", value);
  return *this;
}

LogFields& LogFields::add(std::string_view name, double value) {
  add_name(name);
  fmt::format_to(std::back_inserter(text_), "{:.3f}", std::isfinite(value) ? value : 0.0);
  return *this;
}

void log_event(spdlog::level::level_enum level, std::string_view name, const LogFields& fields) {
  if (!loggers().events.should_log(level)) return;
  loggers().events.log(level, "{}{}", name, fields.text());
}

std::string log_line(bool json, spdlog::level::level_enum level, std::string_view message,
                     const LogFields* fields) {
  const std::string payload = std::string(message) + (fields != nullptr ? fields->text() : "");
  const std::string_view name = fields != nullptr ? kEvents : "spillway";
  spdlog::details::log_msg made(spdlog::string_view_t(name.data(), name.size()), level, payload);
  made.time = {};
  spdlog::memory_buf_t out;
  LineFormatter(json).format(made, out);
  return std::string(out.data(), out.size() - 1);
}

}  // namespace base
