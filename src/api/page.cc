#include "api/page.h"

#include <chrono>
#include <utility>

#include "api/errors.h"
#include "api/service.h"
#include "api/state_json.h"

namespace api {
namespace {

// The engine makes a picture at its next turn; while it is in a long step there is none to come.
constexpr int64_t kFreshUs = 1'000'000;
constexpr int kWaits = 5;
constexpr std::chrono::milliseconds kWait{50};

constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const char* status_name(Service& service) {
  if (service.draining()) return "draining";
  return service.engine_alive() ? "serving" : "stalled";
}

}  // namespace

http::Response page_response(const PageFile& file) {
  http::Response response;
  response.content_type = file.content_type;
  response.headers = {{"content-security-policy", kPolicy},
                      {"x-content-type-options", "nosniff"},
                      {"referrer-policy", "no-referrer"},
                      {"cache-control", "no-cache"}};
  response.body = file.bytes;
  return response;
}

http::Task<void> answer_state(Service& service, http::Exchange& exchange) {
  if (!service.loaded()) {
    http::Response response = error_response({Problem::kLoading, "The model is being loaded."});
    co_await exchange.respond(std::move(response));
    co_return;
  }
  StateParts parts;
  parts.live = service.engine().live_state();
  for (int i = 0; i < kWaits && http::monotonic_us() - parts.live.made_us > kFreshUs; ++i) {
    co_await exchange.wait(kWait);
    if (exchange.gone()) co_return;
    parts.live = service.engine().live_state();
  }
  parts.model = service.model().served_name;
  parts.status = status_name(service);
  parts.context_max = service.engine().context_max();
  parts.cache = service.cache();
  parts.counters = service.engine().snapshot();
  parts.rates = service.live_meter().look(parts.counters);
  parts.first_token = service.metrics().first_tokens().percentiles();
  parts.token_gap = service.metrics().token_gaps().percentiles();
  parts.now_us = http::monotonic_us();
  http::Response response;
  response.headers = {{"cache-control", "no-store"}};
  response.body = state_json(parts);
  co_await exchange.respond(std::move(response));
}

}  // namespace api
