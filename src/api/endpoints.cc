#include "api/endpoints.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <optional>

#include "api/generate.h"
#include "api/json_writer.h"
#include "api/page.h"
#include "api/prepare.h"
#include "api/render.h"
#include "api/request_record.h"
#include "api/respond.h"

namespace api {
namespace {

// A handler with the request's record; who may ask is judged before it runs. `path` is borrowed.
http::Handler recorded(Service& service, std::string_view path, Access access,
                       http::Handler handler) {
  service.access().set_route(std::string(path), access);
  return
      [&service, path, handler = std::move(handler)](http::Exchange& exchange) -> http::Task<void> {
        const RequestRecord record(service, exchange, path);
        co_await handler(exchange);
      };
}
void add(http::Router& router, Service& service, const char* method, std::string_view path,
         Access access, http::Handler handler) {
  router.add(method, std::string(path), recorded(service, path, access, std::move(handler)));
}

http::Response json(std::string body) {
  http::Response response;
  response.body = std::move(body);
  return response;
}

void append_model_card(std::string& out, const ServedModel& model, const std::string& name) {
  out += R"({"id":)";
  append_json_string(out, name);
  out += R"(,"object":"model","owned_by":"spillway","created":)";
  append_json_int(out, model.created_s);
  // Where it was loaded from is nobody's business: the first of its names.
  out += ",\"root\":";
  append_json_string(out, model.served_name);
  out += ",\"parent\":null,\"max_model_len\":";
  append_json_int(out, model.context_max);
  out += ",\"meta\":{\"n_vocab\":";
  append_json_int(out, model.config.vocab_size);
  out += "}}";
}

std::string models_json(const ServedModel& model) {
  std::string out = R"({"object":"list","data":[)";
  append_model_card(out, model, model.served_name);
  for (const std::string& name : model.other_names) {
    out += ',';
    append_model_card(out, model, name);
  }
  return out + "]}";
}

http::Task<void> generate_if_available(Service& service, http::Exchange& exchange,
                                       Endpoint endpoint) {
  if (auto error = service.unavailable()) {
    co_await respond_error(exchange, *std::move(error));
  } else {
    co_await generate(service, exchange, endpoint);
  }
}

// /tokenize and /detokenize: a job for a text worker whose result is the answer.
http::Task<void> answer_by_worker(
    Service& service, http::Exchange& exchange,
    std::function<std::variant<std::string, ApiError>(const std::string&)> job) {
  auto outcome = co_await service.on_worker(exchange, std::move(job));
  if (exchange.gone()) co_return;
  if (!outcome) {
    ApiError full = body_queue_full();
    co_await respond_error(exchange, std::move(full));
  } else if (auto* error = std::get_if<ApiError>(&*outcome)) {
    co_await respond_error(exchange, std::move(*error));
  } else {
    http::Response response = json(std::move(std::get<std::string>(*outcome)));
    co_await exchange.respond(std::move(response));
  }
}

using BodyOutcome = std::variant<std::string, ApiError>;
// An answer that a text worker makes of the body alone; `id`: random. It borrows nothing.
using AnswerBody = std::function<BodyOutcome(std::string_view body, const ServedModel& model,
                                             int64_t now_unix_s, const std::string& id)>;

http::Task<void> answer_from_body(Service& service, http::Exchange& exchange, AnswerBody answer) {
  if (auto error = service.unavailable()) {
    co_await respond_error(exchange, *std::move(error));
    co_return;
  }
  std::function<std::variant<std::string, ApiError>(const std::string&)> job =
      [&model = service.model(), answer = std::move(answer), now_s = std::time(nullptr),
       id = service.random_hex()](const std::string& body) {
        return answer(body, model, now_s, id);
      };
  co_await answer_by_worker(service, exchange, std::move(job));
}

// Waits for the engine to come between two steps, so not on the I/O thread.
http::Task<void> reset_prefix_cache(Service& service, http::Exchange& exchange) {
  if (auto error = service.unavailable()) {
    co_await respond_error(exchange, *std::move(error));
    co_return;
  }
  std::function<std::variant<std::string, ApiError>(const std::string&)> job =
      [&engine = service.engine()](const std::string&) {
        engine.reset_prefix_cache();
        return std::string("{}");
      };
  co_await answer_by_worker(service, exchange, std::move(job));
}

// Alive: the process answers and the engine gets on with its work. Loading is alive.
http::Response health(Service& service) {
  if (!service.engine_alive()) {
    return error_response({Problem::kEngineDead, "The engine has stopped responding."});
  }
  return json(R"({"status":"ok"})");
}

http::Response ready(Service& service) {
  if (const auto error = service.unready()) return error_response(*error);
  return json(R"({"status":"ok"})");
}

http::Response models(Service& service) {
  if (!service.loaded()) return error_response({Problem::kLoading, "The model is being loaded."});
  return json(models_json(service.model()));
}

// The byte that %XX stands for, at the beginning of `text`; nothing: it is no such thing.
std::optional<char> percent_byte(std::string_view text) {
  unsigned value = 0;
  if (text.size() < 3 || text[0] != '%') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + 3, value, 16);
  if (error != std::errc() || end != text.data() + 3) return std::nullopt;
  return static_cast<char>(value);
}

// A name of a path: clients write the '/' of org/name as it is or as %2F.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = percent_byte(text.substr(i));
    out += byte.value_or(text[i]);
    if (byte) i += 2;
  }
  return out;
}

constexpr std::string_view kModelsBelow = "/v1/models/";

http::Response model_named(Service& service, std::string_view path) {
  if (!service.loaded()) return error_response({Problem::kLoading, "The model is being loaded."});
  const std::string name = percent_decoded(path.substr(kModelsBelow.size()));
  if (const auto error = check_model(name, service.model())) return error_response(*error);
  std::string card;
  append_model_card(card, service.model(), name);
  return json(std::move(card));
}

http::Response metrics(Service& service) {
  http::Response response;
  if (!service.loaded()) return error_response({Problem::kLoading, "The model is being loaded."});
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = service.metrics().render(service.engine().snapshot());
  return response;
}

http::Response version(Service& service) {
  std::string out = "{\"version\":";
  append_json_string(out, service.options().version);
  return json(out + "}");
}

// Paths that generate, or that make their answer of the body alone.
void add_generating(http::Router& router, Service& service) {
  const auto add_generate = [&](const char* path, Endpoint endpoint) {
    add(router, service, "POST", path, Access::kKeyed,
        [&service, endpoint](http::Exchange& exchange) {
          return generate_if_available(service, exchange, endpoint);
        });
  };
  add_generate("/v1/completions", Endpoint::kCompletions);
  add_generate("/v1/chat/completions", Endpoint::kChat);
  add_generate("/v1/messages", Endpoint::kMessages);
  add_generate("/v1/responses", Endpoint::kResponses);
  const auto add_from_body = [&](const char* path, AnswerBody answer) {
    add(router, service, "POST", path, Access::kKeyed,
        [&service, answer](http::Exchange& exchange) {
          return answer_from_body(service, exchange, answer);
        });
  };
  using PlainAnswer = BodyOutcome (*)(std::string_view, const ServedModel&, int64_t);
  const auto plain = [](PlainAnswer answer) -> AnswerBody {
    return [answer](std::string_view body, const ServedModel& model, int64_t now_unix_s,
                    const std::string&) { return answer(body, model, now_unix_s); };
  };
  const auto render = [](Endpoint endpoint) -> AnswerBody {
    return [endpoint](std::string_view body, const ServedModel& model, int64_t now_unix_s,
                      const std::string& id) {
      return answer_render(endpoint, body, model, now_unix_s, id);
    };
  };
  add_from_body("/v1/messages/count_tokens", plain(answer_count_tokens));
  add_from_body("/v1/completions/render", render(Endpoint::kCompletions));
  add_from_body("/v1/chat/completions/render", render(Endpoint::kChat));
  add_from_body("/tokenize", plain(answer_tokenize));
  add_from_body("/detokenize", plain(answer_detokenize));
}

Problem problem_of(http::Refusal refusal) {
  switch (refusal) {
    case http::Refusal::kMalformed:
      return Problem::kMalformedRequest;
    case http::Refusal::kNotFound:
      return Problem::kRouteNotFound;
    case http::Refusal::kMethodNotAllowed:
      return Problem::kMethodNotAllowed;
    case http::Refusal::kBodyTooLarge:
      return Problem::kRequestTooLarge;
    case http::Refusal::kHeaderTooLarge:
      return Problem::kHeaderTooLarge;
    case http::Refusal::kBusy:
      return Problem::kTooManyConnections;
    case http::Refusal::kInternal:
      break;
  }
  return Problem::kInternal;
}

}  // namespace

http::Router make_router(Service& service) {
  http::Router router;
  const auto add_answer = [&](const char* path, Access access, http::Response (*answer)(Service&)) {
    add(router, service, "GET", path, access,
        [&service, answer](http::Exchange& exchange) -> http::Task<void> {
          http::Response response = answer(service);
          co_await exchange.respond(std::move(response));
        });
  };
  add_answer("/health", Access::kProbe, health);
  add_answer("/ready", Access::kProbe, ready);
  add_answer("/health/ready", Access::kProbe, ready);
  add_answer("/v2/health/ready", Access::kProbe, ready);  // KServe's name
  add_answer("/metrics", Access::kOpen, metrics);
  add_answer("/version", Access::kKeyed, version);
  add_answer("/v1/models", Access::kKeyed, models);
  router.add_below("GET", std::string(kModelsBelow),
                   recorded(service, kModelsBelow, Access::kKeyed,
                            [&service](http::Exchange& exchange) -> http::Task<void> {
                              http::Response response =
                                  model_named(service, exchange.request().path);
                              co_await exchange.respond(std::move(response));
                            }));
  add_generating(router, service);
  add(router, service, "POST", "/reset_prefix_cache", Access::kKeyed,
      [&service](http::Exchange& exchange) { return reset_prefix_cache(service, exchange); });
  add(router, service, "GET", "/spillway/state", Access::kKeyed,
      [&service](http::Exchange& exchange) { return answer_state(service, exchange); });
  for (const PageFile& file : page_files()) {
    add(router, service, "GET", file.path, Access::kOpen,
        [&file](http::Exchange& exchange) -> http::Task<void> {
          http::Response response = page_response(file);
          co_await exchange.respond(std::move(response));
        });
  }
  return router;
}

http::Verdict judge(Service& service, const http::Request& head, std::string_view route) {
  // Only this shape repeats the id in its body; the others need one when they are refused.
  const bool in_body = error_shape_of(head.path) == ErrorShape::kAnthropic;
  std::string id = in_body ? request_id_of(service, head) : "";
  http::Verdict verdict = service.access().judge(head, route, id);
  if (!verdict.answer) return verdict;
  if (!in_body) id = request_id_of(service, head);
  const int status = verdict.answer->status;
  if (status >= 400) log_refused(service, head, route, id, status);  // else a preflight's answer
  verdict.answer->headers.push_back({"x-request-id", std::move(id)});
  return verdict;
}

http::Response refusal_response(Service& service, http::Refusal refusal,
                                const http::Request& request, const std::string& message) {
  const ErrorShape shape = error_shape_of(request.path);
  // Of a handler that failed: the answer has the id of its record already.
  if (refusal == http::Refusal::kInternal)
    return error_response({Problem::kInternal, message}, shape);
  std::string id = request_id_of(service, request);
  http::Response response = error_response({problem_of(refusal), message}, shape, id);
  log_refused(service, request, "", id, response.status);
  response.headers.push_back({"x-request-id", std::move(id)});
  return response;
}

}  // namespace api
