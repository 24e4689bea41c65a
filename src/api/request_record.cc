#include "api/request_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <any>

#include "base/check.h"
#include "base/log_event.h"

namespace api {
namespace {

constexpr size_t kRequestIdBytesMax = 128;
constexpr size_t kMethodBytesShown = 16;  // of requests that nobody has checked
constexpr size_t kPathBytesShown = 128;

// Ids that come from outside go back into a header: printable ASCII only.
bool usable_request_id(std::string_view id) {
  return !id.empty() && id.size() <= kRequestIdBytesMax &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Bits that mean something to us, of a digit: sampled, random trace id. Others are not passed on.
char known_flags(char digit) {
  const int value = digit <= '9' ? digit - '0' : digit - 'a' + 10;
  return static_cast<char>('0' + (value & 3));
}

// Nothing: none, or several, of which nobody knows which one holds.
std::optional<TraceParent> trace_parent_of(const http::Request& request) {
  const auto is_it = [](const http::Header& h) {
    return http::equals_ignoring_case(h.name, "traceparent");
  };
  if (std::count_if(request.headers.begin(), request.headers.end(), is_it) != 1)
    return std::nullopt;
  return parse_trace_parent(*request.header("traceparent"));
}

double milliseconds(int64_t us) {
  return static_cast<double>(us) * 1e-3;
}

}  // namespace

std::optional<TraceParent> parse_trace_parent(std::string_view header) {
  // 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01; later versions may say more.
  constexpr size_t kBytes = 55;
  if (header.size() < kBytes || header[2] != '-' || header[35] != '-' || header[52] != '-') {
    return std::nullopt;
  }
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32),
                         parent = header.substr(36, 16), flags = header.substr(53, 2);
  if (!is_hex(version) || version == "ff" || !is_hex(trace) || !is_hex(parent) || !is_hex(flags)) {
    return std::nullopt;
  }
  const std::string_view rest = header.substr(kBytes);
  if (!rest.empty() && (version == "00" || rest.front() != '-')) return std::nullopt;
  if (trace.find_first_not_of('0') == trace.npos || parent.find_first_not_of('0') == parent.npos) {
    return std::nullopt;
  }
  return TraceParent{std::string(trace), std::string(parent), {'0', known_flags(flags[1])}};
}

std::string request_id_of(Service& service, const http::Request& request) {
  const auto given = request.header("x-request-id");
  return given && usable_request_id(*given) ? std::string(*given) : service.random_hex();
}

void log_refused(Service& service, const http::Request& request, std::string_view route,
                 std::string_view request_id, int status) {
  const int64_t now_us = http::monotonic_us();
  std::optional<int64_t> left_out;
  if (service.options().log_requests) left_out = service.refusal_lines().take(now_us);
  const auto level = left_out ? spdlog::level::info : spdlog::level::debug;
  if (!base::logger().should_log(level)) return;
  base::LogFields fields;
  fields.add("request_id", request_id);
  if (const auto trace = trace_parent_of(request))
    fields.add("trace_id", trace->trace_id).add("parent_id", trace->parent_id);
  fields.add("method", std::string_view(request.method).substr(0, kMethodBytesShown));
  fields.add("route", route);
  if (route.empty()) fields.add("path", std::string_view(request.path).substr(0, kPathBytesShown));
  fields.add("status", int64_t{status});
  if (left_out.value_or(0) > 0) fields.add("left_out", *left_out);
  // Of a connection over the limit nothing has been read.
  if (request.arrival_us != 0) fields.add("total_ms", milliseconds(now_us - request.arrival_us));
  base::log_event(level, "request", fields);
}

RequestRecord::RequestRecord(Service& service, http::Exchange& exchange, std::string_view route)
    : service_(service), exchange_(exchange), route_(route) {
  request_id_ = request_id_of(service, exchange.request());
  exchange.set_header("x-request-id", request_id_);
  begin_trace();
  exchange.attachment() = this;
}

void RequestRecord::begin_trace() {
  trace_ = trace_parent_of(exchange_.request());
  if (!trace_) return;
  span_id_ = fmt::format("{:016x}", std::max<uint64_t>(1, service_.random()));
  exchange_.set_header("traceparent",
                       fmt::format("00-{}-{}-{}", trace_->trace_id, span_id_, trace_->flags));
}

RequestRecord& RequestRecord::of(http::Exchange& exchange) {
  auto* const* found = std::any_cast<RequestRecord*>(&exchange.attachment());
  CHECK(found != nullptr, "{} has no record", exchange.request().path);
  return **found;
}

void RequestRecord::add_sequence(const telemetry::FinishedRequest& story,
                                 engine::EventStream::Pages pages, bool counts_prompt) {
  ++sequences_;
  if (counts_prompt) {
    prompt_tokens_ += story.prompt_tokens;
    cached_tokens_ += story.cached_tokens;
    disk_tokens_ += story.disk_tokens;
  }
  generated_tokens_ += story.generated_tokens;
  preemptions_ += story.preemptions;
  pages_.selected += pages.selected;
  pages_.missed += pages.missed;
  reason_ = std::max(reason_, story.reason);
  if (story.scheduled_us == 0) {
    queue_us_ = std::max(queue_us_, story.finished_us - story.queued_us);
    return;
  }
  queue_us_ = std::max(queue_us_, story.scheduled_us - story.queued_us);
  if (story.first_token_us == 0) return;
  prefill_us_ = std::max(prefill_us_, story.first_token_us - story.scheduled_us);
  decode_us_ = std::max(decode_us_, story.last_token_us - story.first_token_us);
}

RequestRecord::~RequestRecord() {
  exchange_.attachment().reset();
  // 499: the client left before it was answered; a stream that was left has it already.
  const int64_t status = exchange_.status() == 0 ? 499 : exchange_.status();
  // Probes fail while a model is loaded, and again every second.
  const bool failed = status >= 400 && exchange_.request().method == "POST";
  const bool shown = service_.options().log_requests && (asks_for_tokens() || failed);
  const auto level = shown ? spdlog::level::info : spdlog::level::debug;
  if (!base::logger().should_log(level)) return;
  const http::Request& request = exchange_.request();
  base::LogFields fields;
  fields.add("request_id", request_id_);
  if (trace_) {
    fields.add("trace_id", trace_->trace_id).add("span_id", span_id_);
    fields.add("parent_id", trace_->parent_id);
  }
  fields.add("method", request.method).add("route", route_).add("status", status);
  if (asks_for_tokens()) {
    fields.add("finish", core::finish_reason_name(reason_)).add("sequences", sequences_);
    fields.add("prompt_tokens", prompt_tokens_).add("cached_tokens", cached_tokens_);
    if (disk_tokens_ > 0) fields.add("disk_tokens", disk_tokens_);
    fields.add("generated_tokens", generated_tokens_);
    fields.add("queue_ms", milliseconds(queue_us_)).add("prefill_ms", milliseconds(prefill_us_));
    fields.add("decode_ms", milliseconds(decode_us_));
    if (preemptions_ > 0) fields.add("preemptions", preemptions_);
    if (pages_.selected > 0) {
      fields.add("pages_selected", pages_.selected);
      fields.add("pages_from_host", pages_.missed);
    }
  }
  fields.add("total_ms", milliseconds(http::monotonic_us() - request.arrival_us));
  base::log_event(level, "request", fields);
}

}  // namespace api
