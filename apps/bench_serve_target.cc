#include "apps/bench_serve_target.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "apps/bench_serve_answer.h"
#include "apps/bench_serve_workload.h"
#include "http/client.h"

namespace apps {
namespace {

using base::Code;
using nlohmann::json;

constexpr std::chrono::seconds kQuestionTimeout{60};
constexpr int64_t kVocabularyMax = 1 << 24;

// "http://HOST[:PORT][/PREFIX]"; an IPv6 address stands in brackets.
base::Result<Target> parse_url(const std::string& url) {
  const auto bad = [&](const char* why) {
    return base::error(Code::kInvalidArgument, "--base-url {}: {}", url, why);
  };
  if (url.starts_with("https://")) return bad("TLS is not supported; expected http://");
  if (!url.starts_with("http://")) return bad("expected http://HOST:PORT");
  std::string_view rest = std::string_view(url).substr(7);
  const std::string_view authority = rest.substr(0, rest.find('/'));
  Target target;
  target.prefix = rest.substr(authority.size());
  while (target.prefix.ends_with('/')) target.prefix.pop_back();
  const bool bracketed = authority.starts_with('[');
  const size_t host_end = bracketed ? authority.find(']') : authority.find(':');
  target.host = authority.substr(bracketed, host_end - bracketed);
  std::string_view port;
  if (host_end != authority.npos) port = authority.substr(host_end + bracketed);
  target.port = 80;
  if (!port.empty()) {
    const char* end = port.data() + port.size();
    const auto parsed = std::from_chars(port.data() + 1, end, target.port);
    if (port[0] != ':' || parsed.ec != std::errc() || parsed.ptr != end) return bad("bad port");
  }
  if (target.host.empty() || target.port == 0) return bad("expected http://HOST:PORT");
  return target;
}

// A byte that ends a line of a request's head, or that no head may have.
bool is_control(char c) {
  return (c >= 0 && c < ' ') || c == 0x7F;
}

// Of what stands in a request's first line or its Host.
bool has_blank(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return c == ' ' || is_control(c); });
}

bool is_header_value(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return c != '\t' && is_control(c); });
}

// A token of RFC 9110.
bool is_header_name(std::string_view text) {
  static constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kMarks.find(c) != kMarks.npos;
  });
}

// Messages name the option and not its value, which would break their line too.
base::Result<void> check_place(const BenchServeOptions& options) {
  for (const auto& [flag, text] :
       {std::pair("--base-url", &options.base_url), std::pair("--host", &options.host),
        std::pair("--endpoint", &options.endpoint)}) {
    if (has_blank(*text)) {
      return base::error(Code::kInvalidArgument,
                         "{}: a blank, a line break or another control character is in it", flag);
    }
  }
  if (!options.endpoint.empty() && !options.endpoint.starts_with('/')) {
    return base::error(Code::kInvalidArgument, "--endpoint {}: expected a path from /",
                       options.endpoint);
  }
  return {};
}

// "KEY=VALUE"
base::Result<http::Header> parse_header(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || !is_header_name(std::string_view(text).substr(0, equals))) {
    return base::error(Code::kInvalidArgument,
                       "--header: expected KEY=VALUE, and a KEY of letters, digits and hyphens");
  }
  http::Header header{text.substr(0, equals), text.substr(equals + 1)};
  if (!is_header_value(header.value)) {
    return base::error(Code::kInvalidArgument,
                       "--header {}: a line break or another control character is in its value",
                       header.name);
  }
  for (const char* own : {"Host", "Content-Length", "Transfer-Encoding"}) {
    if (!http::equals_ignoring_case(header.name, own)) continue;
    return base::error(Code::kInvalidArgument, "--header {}: each request has its own",
                       header.name);
  }
  return header;
}

// The model cards of /v1/models; empty: the answer has none.
json model_cards(const json& models) {
  json cards = json::array();
  for (const json& card : models.value("data", json::array())) {
    if (card.is_object() && card.contains("id") && card["id"].is_string()) cards.push_back(card);
  }
  return cards;
}

}  // namespace

base::Result<Target> find_target(const BenchServeOptions& options) {
  RETURN_IF_ERROR(check_place(options));
  Target target{options.host, static_cast<uint16_t>(options.port), "", {}};
  if (!options.base_url.empty()) {
    ASSIGN_OR_RETURN(target, parse_url(options.base_url));
  }
  if (!is_header_value(options.api_key)) {  // which is not shown
    return base::error(Code::kInvalidArgument,
                       "--api-key or $SPILLWAY_API_KEY: a line break or another control character "
                       "is in it");
  }
  if (!options.api_key.empty()) {
    target.headers.push_back({"Authorization", "Bearer " + options.api_key});
  }
  for (const std::string& header : options.headers) {
    ASSIGN_OR_RETURN(http::Header parsed, parse_header(header));
    target.headers.push_back(std::move(parsed));
  }
  return target;
}

base::Result<std::string> ask_text(const Target& target, const std::string& method,
                                   const std::string& path, std::string body) {
  http::Client client(target.host, target.port, kQuestionTimeout);
  ASSIGN_OR_RETURN(http::Response response,
                   client.call({method, target.prefix + path, target.headers, std::move(body)}));
  if (response.status != 200) {
    return base::error(Code::kIo, "{} {}: HTTP {}: {}", method, path, response.status,
                       error_message(response.body));
  }
  return std::move(response.body);
}

base::Result<json> ask(const Target& target, const std::string& method, const std::string& path,
                       std::string body) {
  ASSIGN_OR_RETURN(const std::string text, ask_text(target, method, path, std::move(body)));
  json answer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) return base::error(Code::kIo, "{} {}: not JSON", method, path);
  return answer;
}

base::Result<std::string> find_model(const BenchServeOptions& options,
                                     const base::Result<json>& models) {
  if (!options.model.empty()) return options.model;
  if (!models.ok()) return models.error();
  const json cards = model_cards(*models);
  if (cards.empty()) return base::error(Code::kIo, "/v1/models names no model: give --model");
  return cards[0]["id"].get<std::string>();
}

std::vector<int32_t> find_vocabulary(const Target& target, const base::Result<json>& models,
                                     const std::string& model) {
  std::vector<int32_t> ids;
  if (models.ok()) {
    for (const json& card : model_cards(*models)) {
      const json meta = card.value("meta", json());
      if (card["id"] != model || !meta.is_object() || !meta.contains("n_vocab")) continue;
      if (!meta["n_vocab"].is_number_integer()) continue;
      const auto n = std::min(meta["n_vocab"].get<int64_t>(), kVocabularyMax);
      for (int64_t id = n / 8; id < n - n / 8; ++id) ids.push_back(static_cast<int32_t>(id));
    }
  }
  if (!ids.empty()) return ids;
  const json question = {
      {"model", model}, {"prompt", common_words()}, {"add_special_tokens", false}};
  const base::Result<json> answer = ask(target, "POST", "/tokenize", question.dump());
  if (answer.ok()) {
    for (const json& id : answer->value("tokens", json::array())) {
      if (id.is_number_integer()) ids.push_back(id.get<int32_t>());
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::optional<int64_t> ask_token_count(const Target& target, const std::string& model,
                                       const std::string& text) {
  const json question = {{"model", model}, {"prompt", text}, {"add_special_tokens", false}};
  const std::string body = question.dump(-1, ' ', false, json::error_handler_t::replace);
  const base::Result<json> answer = ask(target, "POST", "/tokenize", body);
  if (!answer.ok() || !answer->contains("count")) return std::nullopt;
  const json& count = (*answer)["count"];
  if (!count.is_number_integer()) return std::nullopt;
  return count.get<int64_t>();
}

}  // namespace apps
