// What one request leaves behind: its ids in the answer's headers, and a line in the log when it
// has ended.
//
// Made at the start of every route's handler, on its frame, and found through the exchange by who
// knows more of the request. Ids: x-request-id is the client's own or a new one; a W3C traceparent
// is answered with one of the same trace and a span of ours, and both are in the line, so that a
// trace and the log meet. Requests that generate, and POSTs that fail, have a line at level info
// (--log-requests), others at debug. No text of a prompt or an answer is ever in it. Thread: I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "api/service.h"
#include "core/request.h"
#include "engine/event_stream.h"
#include "http/exchange.h"
#include "telemetry/metrics.h"

namespace api {

// https://www.w3.org/TR/trace-context, the header's four fields in lowercase hexadecimal.
struct TraceParent {
  std::string trace_id;   // 32 digits, not all 0
  std::string parent_id;  // 16 digits, not all 0
  std::string flags;      // 2 digits; bits that no version up to now knows are 0
};
// Nothing: not such a header, which is then treated as absent.
std::optional<TraceParent> parse_trace_parent(std::string_view header);

// The client's own id, if it can go back into a header, or a new one.
std::string request_id_of(Service& service, const http::Request& request);

// The line of a request that was refused before it had a record, with what is known of it; at info
// as long as a flood of them allows (refusal_lines.h), else at debug. `route`: "" where none was
// met.
void log_refused(Service& service, const http::Request& request, std::string_view route,
                 std::string_view request_id, int status);

class RequestRecord {
 public:
  // `route`: of the router, borrowed. Sets the headers of the answer.
  RequestRecord(Service& service, http::Exchange& exchange, std::string_view route);
  // Writes the line.
  ~RequestRecord();
  RequestRecord(const RequestRecord&) = delete;
  RequestRecord& operator=(const RequestRecord&) = delete;

  // The record of a request whose handler runs.
  static RequestRecord& of(http::Exchange& exchange);

  const std::string& request_id() const { return request_id_; }
  // One of its sequences has ended. `counts_prompt`: no other one before had the same prompt.
  void add_sequence(const telemetry::FinishedRequest& story, engine::EventStream::Pages pages,
                    bool counts_prompt);

 private:
  void begin_trace();
  bool asks_for_tokens() const { return sequences_ > 0; }

  Service& service_;
  http::Exchange& exchange_;
  const std::string_view route_;
  std::string request_id_;
  std::optional<TraceParent> trace_;
  std::string span_id_;
  // Of its sequences: sums, and the longest times.
  int64_t sequences_ = 0;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, disk_tokens_ = 0, generated_tokens_ = 0;
  int64_t queue_us_ = 0, prefill_us_ = 0, decode_us_ = 0;
  int64_t preemptions_ = 0;
  engine::EventStream::Pages pages_;
  core::FinishReason reason_ = core::FinishReason::kStop;
};

}  // namespace api
