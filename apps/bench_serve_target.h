// The server that a load test asks: where it is, and questions to it beside the load.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench_serve.h"
#include "base/result.h"
#include "http/message.h"

namespace apps {

struct Target {
  std::string host;
  uint16_t port = 0;
  std::string prefix;  // of every path; "" or "/..."
  std::vector<http::Header> headers;
};

// Whatever stands in requests is on the lines that are meant for it. Errors: kInvalidArgument,
// naming the option.
base::Result<Target> find_target(const BenchServeOptions& options);

// The body of an answer with status 200. Errors: kIo.
base::Result<std::string> ask_text(const Target& target, const std::string& method,
                                   const std::string& path, std::string body);
// The same where it is a JSON object.
base::Result<nlohmann::json> ask(const Target& target, const std::string& method,
                                 const std::string& path, std::string body);

// --model, or the first one of `models`, the answer of /v1/models. Errors: its, kIo (it names
// none).
base::Result<std::string> find_model(const BenchServeOptions& options,
                                     const base::Result<nlohmann::json>& models);

// Ids for random prompts: the middle of the vocabulary (control tokens stand at its ends) where the
// model card says how large it is, else what the server's tokenizer makes of common words, else
// none.
std::vector<int32_t> find_vocabulary(const Target& target,
                                     const base::Result<nlohmann::json>& models,
                                     const std::string& model);

// What /tokenize counts; empty: it does not.
std::optional<int64_t> ask_token_count(const Target& target, const std::string& model,
                                       const std::string& text);

}  // namespace apps
