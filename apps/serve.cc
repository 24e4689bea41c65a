// spillway serve: the house behind the OpenAI API.
#include <algorithm>
#include <utility>

#include "api/server.h"
#include "apps/commands.h"
#include "apps/house.h"
#include "apps/read_file.h"

namespace apps {
namespace {

base::Result<std::unique_ptr<text::ChatTemplate>> read_template(const std::string& path) {
  ASSIGN_OR_RETURN(std::string source, read_file(path));
  ASSIGN_OR_RETURN(text::ChatTemplate parsed, text::ChatTemplate::parse(std::move(source)));
  return std::make_unique<text::ChatTemplate>(std::move(parsed));
}

// The name that requests use: as asked for, a name of the hub as typed, else the file's or folder's
// own.
std::string served_name(const ServingOptions& options, const ListenOptions& listen) {
  if (!listen.served_model_name.empty()) return listen.served_model_name;
  std::string name = options.model;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  name = name.substr(name.rfind('/') + 1);
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name;
}

base::Result<api::Backend> load_backend(const ServingOptions& options,
                                        const ListenOptions& listen) {
  ASSIGN_OR_RETURN(std::unique_ptr<House> house, build_house(options, /*print_sizes=*/true));
  if (house->tokenizer == nullptr) {
    return base::error(base::Code::kInvalidArgument,
                       "{}: no tokenizer, so there is no text to serve", options.model);
  }
  api::Backend backend;
  backend.config = house->files->config;
  backend.model_path = options.model;
  backend.cache = {.block_tokens = house->sizes.page_tokens,
                   .block_bytes = house->sizes.block_bytes,
                   .page_bytes = house->sizes.page.page_bytes(),
                   .num_blocks = house->sizes.num_blocks,
                   .dtype = options.kv_cache_dtype,
                   .frame_bytes = house->sizes.frame_bytes,
                   .num_frames = house->sizes.num_frames};
  backend.tokenizer = std::move(house->tokenizer);
  backend.chat_template = std::move(house->chat_template);
  if (!listen.chat_template.empty()) {
    ASSIGN_OR_RETURN(backend.chat_template, read_template(listen.chat_template));
  }
  backend.engine = std::move(house->engine);
  backend.keep_alive = std::shared_ptr<House>(std::move(house));
  return backend;
}

}  // namespace

base::Result<void> serve(const ServingOptions& options, const ListenOptions& listen) {
  api::ServerOptions server;
  server.host = listen.host;
  server.port = static_cast<uint16_t>(listen.port);
  server.api_key = listen.api_key;
  server.served_model_name = served_name(options, listen);
  server.version = SPILLWAY_VERSION;
  server.tool_call_parser = listen.tool_call_parser;
  server.reasoning_parser = listen.reasoning_parser;
  // Requests wait first for a text worker, then for the engine: the one bound holds for both
  // places. More than all connections cannot wait.
  server.text_queue =
      std::min(options.max_num_queued_reqs, static_cast<int32_t>(server.limits.connections_max));
  server.shutdown_timeout = std::chrono::seconds(listen.shutdown_timeout_s);
  return api::serve(std::move(server), [&] { return load_backend(options, listen); });
}

}  // namespace apps
