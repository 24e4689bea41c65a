#include "api/access.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <random>

#include "base/check.h"

namespace api {
namespace {

constexpr size_t kKeyBytesMax = 1024;
constexpr size_t kNameBytesShown = 64;
constexpr std::string_view kHeaderNames =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ";
constexpr const char* kPreflightSeconds = "600";

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// The name of "name", "name:port", "[v6]" or "[v6]:port", without brackets and a root's dot. Empty:
// it is none of these.
std::string_view name_of(std::string_view host) {
  std::string_view rest;
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    if (end == host.npos) return {};
    rest = host.substr(end + 1);
    host = host.substr(1, end - 1);
  } else if (const size_t colon = host.find(':'); colon != host.npos) {
    rest = host.substr(colon);
    host = host.substr(0, colon);
  }
  const bool port = rest.empty() || (rest.front() == ':' && rest.size() <= 6 &&
                                     rest.find_first_not_of("0123456789", 1) == rest.npos);
  if (!port) return {};
  if (host.ends_with('.')) host.remove_suffix(1);
  return host;
}

bool is_address(std::string_view name) {
  const std::string text(name);
  in6_addr bytes;
  return inet_pton(AF_INET, text.c_str(), &bytes) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &bytes) == 1;
}

// Scheme and authority of an origin, without the scheme's own port.
struct Origin {
  std::string scheme, authority;
};
std::optional<Origin> split_origin(std::string_view text) {
  const size_t mark = text.find("://");
  if (mark == text.npos) return std::nullopt;
  Origin origin{lower(text.substr(0, mark)), lower(text.substr(mark + 3))};
  if (name_of(origin.authority).empty()) return std::nullopt;
  return origin;
}

std::string_view without_port(std::string_view authority, std::string_view scheme) {
  const std::string_view port = scheme == "https" ? ":443" : ":80";
  if (authority.ends_with(port)) authority.remove_suffix(port.size());
  return authority;
}

// As origins are compared: in small letters, without the scheme's own port.
std::string normal_form(const Origin& origin) {
  return fmt::format("{}://{}", origin.scheme, without_port(origin.authority, origin.scheme));
}

bool is_json(std::string_view content_type) {
  return http::equals_ignoring_case(trimmed(content_type.substr(0, content_type.find(';'))),
                                    "application/json");
}

bool has_body(const http::Request& head) {
  return head.header("transfer-encoding") || head.header("content-length").value_or("0") != "0";
}

// The browser asks before it sends what a plain form could not.
bool is_preflight(const http::Request& head) {
  return head.method == "OPTIONS" && head.header("origin") &&
         head.header("access-control-request-method");
}

http::Response preflight_answer(const http::Request& head) {
  http::Response response;
  response.status = 204;
  response.content_type.clear();
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                      {"Access-Control-Max-Age", kPreflightSeconds}};
  // Clients send headers of their own (x-stainless-*, anthropic-version); none of them is a key to
  // anything here.
  if (const auto wanted = head.header("access-control-request-headers");
      wanted && wanted->find_first_not_of(kHeaderNames) == wanted->npos)
    response.headers.push_back({"Access-Control-Allow-Headers", std::string(*wanted)});
  if (head.header("access-control-request-private-network"))
    response.headers.push_back({"Access-Control-Allow-Private-Network", "true"});
  return response;
}

std::array<unsigned char, 32> digest_of(std::string_view key,
                                        const std::array<unsigned char, 32>& salt) {
  std::array<unsigned char, 32> digest{};
  unsigned int size = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
  CHECK(HMAC(EVP_sha256(), salt.data(), static_cast<int>(salt.size()), bytes, key.size(),
             digest.data(), &size) != nullptr);
  return digest;
}

}  // namespace

base::Result<void> check_access_options(const AccessOptions& options) {
  using base::Code;
  for (const std::string& key : options.api_keys) {
    if (key.empty() || key.size() > kKeyBytesMax || !is_printable(key)) {
      return base::error(Code::kInvalidArgument,
                         "an API key of {} bytes: expected 1 to {} bytes of printable ASCII "
                         "without blanks",
                         key.size(), kKeyBytesMax);
    }
  }
  for (const std::string& host : options.allowed_hosts) {
    if (host != "*" && (name_of(host).empty() || !is_printable(host) ||
                        host.find_first_of("/@") != std::string::npos)) {
      return base::error(Code::kInvalidArgument,
                         "allowed host '{}': expected a name such as llm.example, or *", host);
    }
  }
  for (const std::string& origin : options.allowed_origins) {
    const auto parts = split_origin(origin);
    if (origin != "*" && (!parts || !is_printable(origin) ||
                          parts->authority.find_first_of("/@") != std::string::npos)) {
      return base::error(Code::kInvalidArgument,
                         "allowed origin '{}': expected scheme and host such as "
                         "https://app.example, without a path, or *",
                         origin);
    }
  }
  return {};
}

std::vector<std::string> parse_key_file(std::string_view text) {
  std::vector<std::string> keys;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    if (!line.empty() && line.front() != '#') keys.emplace_back(line);
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
  }
  return keys;
}

bool is_loopback_address(std::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  return host.starts_with("127.") && is_address(host);
}

AccessPolicy::AccessPolicy(const AccessOptions& options, std::string_view bound_host) {
  std::random_device random;
  for (unsigned char& byte : salt_) byte = static_cast<unsigned char>(random());
  for (const std::string& key : options.api_keys) keys_.push_back(digest_of(key, salt_));
  hosts_ = {"localhost", lower(bound_host)};
  for (const std::string& host : options.allowed_hosts) {
    any_host_ |= host == "*";
    hosts_.push_back(lower(name_of(host)));
  }
  for (const std::string& origin : options.allowed_origins) {
    any_origin_ |= origin == "*";
    if (const auto parts = split_origin(origin)) origins_.push_back(normal_form(*parts));
  }
}

void AccessPolicy::set_route(std::string path, Access access) {
  const auto [at, added] = routes_.emplace(std::move(path), access);
  CHECK(added || at->second == access, "{} has two kinds of access", at->first);
}

http::Verdict AccessPolicy::judge(const http::Request& head, std::string_view route,
                                  std::string_view request_id) const {
  http::Verdict verdict;
  const auto entry = routes_.find(route);
  const Access access = entry == routes_.end() ? Access::kKeyed : entry->second;
  const auto origin = head.header("origin");
  const bool shared = origin && is_allowed_origin(*origin);
  if (shared) {
    verdict.headers = {{"Access-Control-Allow-Origin", any_origin_ ? "*" : std::string(*origin)},
                       {"Access-Control-Expose-Headers", "x-request-id, retry-after"},
                       {"Vary", "Origin"}};
  }
  std::optional<ApiError> error;
  if (is_preflight(head)) {  // carries no key
    if (!shared) error = ApiError{Problem::kForbidden, "Pages of this origin may not ask here."};
    if (!error && !asks_for_keys()) error = foreign(head);
    if (!error) verdict.answer = preflight_answer(head);
  } else {
    error = refusal(head, access);
  }
  if (error) verdict.answer = error_response(*error, error_shape_of(head.path), request_id);
  return verdict;
}

std::optional<ApiError> AccessPolicy::refusal(const http::Request& head, Access access) const {
  if (access == Access::kProbe) return std::nullopt;
  if (asks_for_keys()) {
    if (access == Access::kKeyed && !has_key(head))
      return ApiError{Problem::kInvalidApiKey, "The API key is missing or wrong."};
  } else if (auto error = foreign(head)) {
    return error;
  }
  if (head.method == "POST" && has_body(head) && !is_json(head.header("content-type").value_or("")))
    return ApiError{Problem::kUnsupportedMediaType,
                    "The body of a POST must have the Content-Type application/json."};
  const std::string_view coding = head.header("content-encoding").value_or("identity");
  if (has_body(head) && !coding.empty() && lower(coding) != "identity")
    return ApiError{Problem::kUnsupportedMediaType,
                    "The body must come as it is, without a Content-Encoding."};
  return std::nullopt;
}

std::optional<ApiError> AccessPolicy::foreign(const http::Request& head) const {
  // Only HTTP/1.0 may leave it out; no browser does, so who does is no page.
  const std::string_view host = head.header("host").value_or("localhost");
  if (!is_ours(host)) {
    const std::string_view shown = host.substr(0, kNameBytesShown);
    return ApiError{Problem::kForbidden,
                    fmt::format("The Host '{}' is not a name of this server; it can be started "
                                "with --allowed-host NAME, or with an API key.",
                                shown)};
  }
  const auto given = head.header("origin");
  if (!given || is_allowed_origin(*given)) return std::nullopt;
  const auto origin = split_origin(*given);
  if (origin && without_port(origin->authority, origin->scheme) ==
                    without_port(lower(host), origin->scheme)) {
    return std::nullopt;  // a page of this server
  }
  return ApiError{Problem::kForbidden,
                  "Pages of this origin may not ask here; the server can be started with "
                  "--allowed-origin ORIGIN, or with an API key."};
}

// All keys are compared, whichever fits.
bool AccessPolicy::has_key(const http::Request& head) const {
  constexpr std::string_view kBearer = "Bearer ";
  std::string_view bearer = head.header("authorization").value_or("");
  const bool scheme = http::equals_ignoring_case(bearer.substr(0, kBearer.size()), kBearer);
  bearer = scheme ? trimmed(bearer.substr(kBearer.size())) : std::string_view();
  bool found = false;
  for (const std::string_view given : {bearer, head.header("x-api-key").value_or("")}) {
    const Digest digest = digest_of(given, salt_);
    for (const Digest& key : keys_)
      found |= CRYPTO_memcmp(digest.data(), key.data(), key.size()) == 0;
  }
  return found;
}

bool AccessPolicy::is_ours(std::string_view host) const {
  if (any_host_) return true;
  const std::string name = lower(name_of(host));
  return !name.empty() &&
         (is_address(name) || std::find(hosts_.begin(), hosts_.end(), name) != hosts_.end());
}

bool AccessPolicy::is_allowed_origin(std::string_view text) const {
  if (any_origin_) return true;
  const auto origin = split_origin(text);
  if (!origin) return false;
  return std::find(origins_.begin(), origins_.end(), normal_form(*origin)) != origins_.end();
}

}  // namespace api
