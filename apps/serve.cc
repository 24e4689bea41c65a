// spillway serve: the house behind the OpenAI API.
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "api/server.h"
#include "apps/commands.h"
#include "apps/find_model.h"
#include "apps/house.h"
#include "apps/read_file.h"
#include "base/log.h"
#include "base/sizes.h"
#include "events/publisher_options.h"
#include "events/zmq_publisher.h"

namespace apps {
namespace {

constexpr const char* kKeyVariable = "SPILLWAY_API_KEY";
constexpr size_t kKeyFileBytesMax = 1 << 20;
constexpr int64_t kBodyBytesMax = int64_t{1} << 30;
constexpr int32_t kOwnFiles = 256;  // weights, the disk tier, the log

base::Result<std::unique_ptr<text::ChatTemplate>> read_template(const std::string& path) {
  ASSIGN_OR_RETURN(std::string source, read_file(path));
  ASSIGN_OR_RETURN(text::ChatTemplate parsed, text::ChatTemplate::parse(std::move(source)));
  return std::make_unique<text::ChatTemplate>(std::move(parsed));
}

base::Result<void> check_served_names(const std::vector<std::string>& names) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (name->empty()) {
      return base::error(base::Code::kInvalidArgument,
                         "--served-model-name '': expected a name that is not empty");
    }
    if (std::find(names.begin(), name, *name) != name) {
      return base::error(base::Code::kInvalidArgument,
                         "--served-model-name: '{}' is given twice, expected different names",
                         *name);
    }
  }
  return {};
}

// The names that requests use: as asked for, a name of the hub as typed, else the file's or
// folder's own.
std::vector<std::string> served_names(const ServingOptions& options, const ListenOptions& listen) {
  if (!listen.served_model_names.empty()) return listen.served_model_names;
  std::error_code error;
  if (!std::filesystem::exists(options.model, error)) return {shown_model_name(options.model)};
  std::string name = options.model;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  name = name.substr(name.rfind('/') + 1);
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return {name};
}

// Bound before anything long begins, so that what is wrong shows at once. Null: events are off.
base::Result<std::shared_ptr<core::KvEventSink>> open_kv_events(const ListenOptions& listen) {
  if (listen.kv_events_config.empty()) return std::shared_ptr<core::KvEventSink>();
  ASSIGN_OR_RETURN(const auto publisher, events::parse_publisher_options(listen.kv_events_config));
  if (!publisher) return std::shared_ptr<core::KvEventSink>();
  ASSIGN_OR_RETURN(auto opened, events::ZmqPublisher::open(*publisher));
  return std::shared_ptr<core::KvEventSink>(std::move(opened));
}

base::Result<api::Backend> load_backend(ServingOptions options, const ListenOptions& listen,
                                        const std::shared_ptr<core::KvEventSink>& kv_events) {
  if (listen.kv_cache_metrics) options.kv_residency_rate = listen.kv_cache_metrics_sample;
  ASSIGN_OR_RETURN(std::unique_ptr<House> house,
                   build_house(options, /*print_sizes=*/true,
                               /*tap=*/nullptr, {.kv_events = kv_events}));
  if (house->tokenizer == nullptr) {
    return base::error(base::Code::kInvalidArgument,
                       "{}: no tokenizer, so there is no text to serve", options.model);
  }
  api::Backend backend;
  backend.config = house->files->config;
  backend.cache = {.block_tokens = house->sizes.page_tokens,
                   .block_bytes = house->sizes.block_bytes,
                   .page_bytes = house->sizes.page.page_bytes(),
                   .num_blocks = house->sizes.num_blocks,
                   .dtype = options.kv_cache_dtype,
                   .frame_bytes = house->sizes.frame_bytes,
                   .num_frames = house->sizes.num_frames,
                   .num_records = static_cast<int64_t>(house->executor->num_disk_records()),
                   .observes_residency = listen.kv_cache_metrics};
  backend.tokenizer = std::move(house->tokenizer);
  backend.chat_template = std::move(house->chat_template);
  if (!listen.chat_template.empty()) {
    ASSIGN_OR_RETURN(backend.chat_template, read_template(listen.chat_template));
  }
  backend.engine = std::move(house->engine);
  backend.keep_alive = std::shared_ptr<House>(std::move(house));
  return backend;
}

// Keys of the command line or the environment, and of the file. A file without any, or a variable
// that is set to nothing, which CLI11 takes for one that is not set, is an error: the server would
// be open.
base::Result<api::AccessOptions> access_options(const ListenOptions& listen) {
  api::AccessOptions access{.api_keys = listen.api_keys,
                            .allowed_hosts = listen.allowed_hosts,
                            .allowed_origins = listen.allowed_origins};
  const char* variable = std::getenv(kKeyVariable);
  if (listen.api_keys.empty() && variable != nullptr && *variable == '\0') {
    return base::error(base::Code::kInvalidArgument,
                       "{} is set but empty: expected an API key, or the variable not set",
                       kKeyVariable);
  }
  if (!listen.api_key_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, read_file(listen.api_key_file, kKeyFileBytesMax));
    const std::vector<std::string> keys = api::parse_key_file(text);
    if (keys.empty()) {
      return base::error(base::Code::kInvalidArgument, "{}: no API key in it, expected one a line",
                         listen.api_key_file);
    }
    access.api_keys.insert(access.api_keys.end(), keys.begin(), keys.end());
  }
  RETURN_IF_ERROR(api::check_access_options(access));
  return access;
}

// A connection is a file: raises the soft limit of files, and lowers `connections` to what the hard
// one leaves beside the server's own.
void make_room_for(int32_t& connections) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(connections) + kOwnFiles;
  if (files.rlim_cur >= wanted) return;
  files.rlim_cur = std::min(wanted, files.rlim_max);
  setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur >= wanted) return;
  connections = std::max(1, static_cast<int32_t>(files.rlim_cur) - kOwnFiles);
  LOG_WARN("at most {} connections: the limit of open files is {}", connections, files.rlim_cur);
}

base::Result<http::ServerLimits> http_limits(const ListenOptions& listen) {
  http::ServerLimits limits;
  limits.connections_max = listen.max_connections;
  make_room_for(limits.connections_max);
  auto body_bytes = base::parse_bytes(listen.max_body_size);
  if (!body_bytes.ok() || body_bytes.value() < 1 || body_bytes.value() > kBodyBytesMax) {
    return base::error(base::Code::kInvalidArgument,
                       "--max-body-size {}: expected a size such as 32MiB, up to 1GiB",
                       listen.max_body_size);
  }
  limits.body_bytes_max = body_bytes.value();
  limits.bodies_bytes_max = std::max(limits.bodies_bytes_max, 4 * limits.body_bytes_max);
  limits.idle_timeout = std::chrono::seconds(listen.idle_timeout_s);
  return limits;
}

// Open to the network and to everybody in it is rarely meant.
void warn_if_open(const api::ServerOptions& server) {
  if (!server.access.api_keys.empty() || api::is_loopback_address(server.host)) return;
  LOG_WARN("---------------------------------------------------------------------------");
  LOG_WARN("{} can be reached from the network and no API key is asked for: everybody who",
           server.host);
  LOG_WARN("reaches port {} may use this server. Set --api-key or --api-key-file.", server.port);
  LOG_WARN("---------------------------------------------------------------------------");
}

}  // namespace

base::Result<void> serve(const ServingOptions& options, const ListenOptions& listen) {
  api::ServerOptions server;
  server.host = listen.host;
  server.port = static_cast<uint16_t>(listen.port);
  ASSIGN_OR_RETURN(server.access, access_options(listen));
  RETURN_IF_ERROR(check_served_names(listen.served_model_names));
  server.log_prompt_bytes = listen.log_prompts_bytes;
  warn_if_open(server);
  server.served_model_names = served_names(options, listen);
  server.version = SPILLWAY_VERSION;
  server.tool_call_parser = listen.tool_call_parser;
  server.reasoning_parser = listen.reasoning_parser;
  ASSIGN_OR_RETURN(server.limits, http_limits(listen));
  // Requests wait first for a text worker, then for the engine: the one bound holds for both
  // places. More than all connections cannot wait.
  server.text_queue =
      std::min(options.max_num_queued_reqs, static_cast<int32_t>(server.limits.connections_max));
  server.drain_delay = std::chrono::seconds(listen.drain_delay_s);
  server.stall_timeout = std::chrono::seconds(listen.stall_timeout_s);
  server.seed = listen.seed;
  server.log_requests = listen.log_requests;
  server.log_status = listen.log_status;
  server.shutdown_timeout = std::chrono::seconds(listen.shutdown_timeout_s);
  server.on_leave = stop_fetching;
  ASSIGN_OR_RETURN(const auto kv_events, open_kv_events(listen));
  return api::serve(std::move(server), [&] { return load_backend(options, listen, kv_events); });
}

}  // namespace apps
