#include "events/publisher_options.h"

#include <array>
#include <nlohmann/json.hpp>

namespace events {
namespace {

using nlohmann::json;

constexpr const char* kOption = "--kv-events-config";
constexpr int32_t kCountMax = 10'000'000;
constexpr size_t kTextBytesMax = 1024;

base::Error wrong(std::string_view field, const char* expected, const json& found) {
  std::string text = found.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 80) + "...";
  return base::error(base::Code::kInvalidArgument, "{}: {} must be {}, not {}", kOption, field,
                     expected, text);
}

base::Result<void> read(const std::string& field, const json& value, bool* to) {
  if (!value.is_boolean()) return wrong(field, "true or false", value);
  *to = value.get<bool>();
  return {};
}

base::Result<void> read(const std::string& field, const json& value, std::string* to) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() > kTextBytesMax) {
    return wrong(field, "a string of at most 1024 bytes", value);
  }
  *to = value.get<std::string>();
  return {};
}

base::Result<void> read(const std::string& field, const json& value, int32_t* to) {
  if (!value.is_number_integer() || value < 1 || value > kCountMax) {
    return wrong(field, "an integer from 1 to 10000000", value);
  }
  *to = value.get<int32_t>();
  return {};
}

bool is_endpoint(std::string_view text) {
  if (text.starts_with("ipc://")) return text.size() > 6;
  return text.starts_with("tcp://") && text.rfind(':') > 5;
}

base::Result<void> read_endpoint(const std::string& field, const json& value, std::string* to) {
  RETURN_IF_ERROR(read(field, value, to));
  if (!is_endpoint(*to)) return wrong(field, "tcp://HOST:PORT or ipc://PATH", value);
  return {};
}

base::Result<void> read_format(const std::string& field, const json& value, bool* positional) {
  if (value != "map" && value != "array") return wrong(field, "\"map\" or \"array\"", value);
  *positional = value == "array";
  return {};
}

// What decides whether there is a publisher at all.
struct Switch {
  bool enabled = false;
  std::string publisher = "zmq";
};

base::Result<void> read_field(const std::string& field, const json& value, Switch* on,
                              PublisherOptions* o) {
  if (field == "enable_kv_cache_events") return read(field, value, &on->enabled);
  if (field == "publisher") {
    if (value.is_null()) return {};
    if (value != "zmq" && value != "null") return wrong(field, "\"zmq\" or \"null\"", value);
    return read(field, value, &on->publisher);
  }
  if (field == "endpoint") return read_endpoint(field, value, &o->endpoint);
  if (field == "replay_endpoint") {
    if (value.is_null()) return {};
    return read_endpoint(field, value, &o->replay_endpoint);
  }
  if (field == "topic") return read(field, value, &o->topic);
  if (field == "buffer_steps") return read(field, value, &o->buffer_steps);
  if (field == "hwm") return read(field, value, &o->hwm);
  if (field == "max_queue_size") return read(field, value, &o->max_queue_size);
  if (field == "format") return read_format(field, value, &o->positional);
  return base::error(
      base::Code::kInvalidArgument,
      "{}: there is no field {}: expected enable_kv_cache_events, publisher, endpoint, "
      "replay_endpoint, topic, buffer_steps, hwm, max_queue_size or format",
      kOption, json(field).dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

base::Result<std::optional<PublisherOptions>> parse_publisher_options(std::string_view text) {
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return base::error(base::Code::kInvalidArgument,
                       "{}: expected a JSON object such as {{\"enable_kv_cache_events\":true}}",
                       kOption);
  }
  Switch on;
  PublisherOptions options;
  for (const auto& [field, value] : parsed.items()) {
    RETURN_IF_ERROR(read_field(field, value, &on, &options));
  }
  if (!on.enabled || on.publisher == "null") return std::optional<PublisherOptions>();
  return std::optional(options);
}

}  // namespace events
