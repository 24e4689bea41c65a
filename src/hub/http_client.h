// GET and HEAD over libcurl, which brings TLS, the system's certificates and its proxy settings.
//
// The server is not trusted: bodies have a limit, redirects are few, leave https never and take the
// token to no other host, stalled connections end. What may pass (no connection, 429, 5xx, a body
// that breaks off) is tried again a few times, longer apart each time. Thread: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"

namespace hub {

struct HttpOptions {
  std::string endpoint;  // https://host or http://host:port, where the token goes
  std::string token;     // "": none
  std::string user_agent;
  std::chrono::milliseconds first_pause{500};  // before the second try; doubles
  int tries = 5;                               // in a row without a new byte
  std::chrono::seconds connect_timeout{10};
  std::chrono::seconds silence_timeout{30};
  std::function<bool()> cancelled;   // asked about once a second; may be empty
  std::function<void()> before_log;  // RepoOptions::before_log
};

// The last answer: any status but those that are tried again.
struct HttpReply {
  int status = 0;
  std::string body;                   // of get_text
  std::string error_code;             // X-Error-Code
  std::string etag;                   // X-Linked-Etag, else ETag; without quotes
  std::optional<int64_t> size_bytes;  // X-Linked-Size, else Content-Length
};

struct Download {
  std::string url;
  std::string path;        // of the part; made if need be, continued if it has bytes
  int64_t size_bytes = 0;  // of the whole file
  std::function<void(int64_t bytes)> progress;  // that the part has now; often
};

class HttpClient {
 public:
  // Errors: kInvalidArgument for an endpoint or a token that cannot be one.
  static base::Result<HttpClient> create(HttpOptions options);
  HttpClient(HttpClient&&) noexcept;
  ~HttpClient();

  // Errors of all three: kIo (the network, after the last try, or a server that breaks the rules),
  // kOverloaded (429 or 5xx after the last try), kCancelled.

  // The whole body, at most `bytes_max` long.
  base::Result<HttpReply> get_text(const std::string& url, int64_t bytes_max, int tries);

  // Of the file as the endpoint knows it: stops at the redirect to another host.
  base::Result<HttpReply> head(const std::string& url);

  // After status 200 or 206 the part has exactly size_bytes; its content is for the caller to
  // check. Bytes that came stay in the part whatever happens, but for those of a server that sends
  // another size. Errors also: kIo when the part cannot be written.
  base::Result<HttpReply> download(const Download& download);

 private:
  struct State;
  explicit HttpClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A path for a URL: what is not a letter, digit or one of `-._~` and, if kept, `/` as %XX.
std::string url_escape(const std::string& text, bool keep_slashes);

}  // namespace hub
