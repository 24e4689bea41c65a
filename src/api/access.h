// Who may ask for what: API keys, Host and Origin, the type of bodies, CORS. Decided from a
// request's head, before its body is read, so that a refused request costs a header.
//
// With keys set, whoever sends one may do everything, and whoever does not may read open routes
// only, wherever he comes from. Without keys everybody who reaches the port may ask, so the one
// thing to keep out is a web page in the browser of somebody who does: a page under a foreign name
// that has been pointed at this address (DNS rebinding: the Host is foreign), and a page that posts
// here (the Origin is foreign, or the body has a type that browsers send without asking first).
//
// A Host that is an IP address is never foreign: a name can be pointed at this server, an address
// cannot. The port of a Host does not matter either (forwarded ports); that of an Origin does.
// Thread: I/O; immutable once the server runs.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "base/result.h"
#include "http/server.h"

namespace api {

// What a route asks for. A path that has no line of its own is kKeyed.
enum class Access : uint8_t {
  kProbe,  // nothing: /health, /ready
  kOpen,   // no key; without keys a Host and an Origin that are ours: /metrics, files of the page
  kKeyed,  // a key; without keys a Host and an Origin that are ours
};

struct AccessOptions {
  std::vector<std::string> api_keys;         // none: nobody is asked
  std::vector<std::string> allowed_hosts;    // names beside localhost and addresses; "*": any
  std::vector<std::string> allowed_origins;  // "https://app.example", "*": any; CORS for them
};

// Errors: kInvalidArgument: a key that is empty, too long or not printable ASCII (it could never be
// sent), a host or an origin that is none.
base::Result<void> check_access_options(const AccessOptions& options);

// One key a line; empty lines and those that begin with # are skipped, blanks around a key too.
std::vector<std::string> parse_key_file(std::string_view text);

// "localhost", 127.0.0.0/8, "::1": reached from this machine only.
bool is_loopback_address(std::string_view host);

class AccessPolicy {
 public:
  // REQUIRES: check_access_options(options) is well. `bound_host`: as given to listen.
  AccessPolicy(const AccessOptions& options, std::string_view bound_host);

  // REQUIRES: before the server runs.
  void set_route(std::string path, Access access);

  // Refuses or not, and the headers of whatever answer follows. `route` is a registered path or "";
  // `request_id`: for refusals of Anthropic's shape, "" = null.
  http::Verdict judge(const http::Request& head, std::string_view route,
                      std::string_view request_id = "") const;

  bool asks_for_keys() const { return !keys_.empty(); }

 private:
  using Digest = std::array<unsigned char, 32>;

  std::optional<ApiError> refusal(const http::Request& head, Access access) const;
  std::optional<ApiError> foreign(const http::Request& head) const;
  bool has_key(const http::Request& head) const;
  bool is_ours(std::string_view host) const;
  bool is_allowed_origin(std::string_view origin) const;

  Digest salt_;               // of this process, so that digests cannot be prepared
  std::vector<Digest> keys_;  // digests: comparing them takes the same time for any key
  std::vector<std::string> hosts_;
  std::vector<std::string> origins_;
  bool any_host_ = false;
  bool any_origin_ = false;
  std::map<std::string, Access, std::less<>> routes_;
};

}  // namespace api
