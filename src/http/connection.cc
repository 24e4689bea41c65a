#include "http/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <ctime>
#include <exception>

#include "base/check.h"
#include "base/log.h"
#include "http/server.h"

// GCC 12 destroys non-trivial temporaries of a co_await expression twice in some cases: completion
// tokens and arguments are therefore named before they are awaited on.

namespace http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;

constexpr size_t kPipelinedBytesMax =
    64 << 10;  // kept while a handler runs; then TCP holds the client back
constexpr size_t kReadBytes = 4096;
constexpr size_t kBodyReadBytes =
    64 << 10;  // 512-byte reads, Beast's default, take 14 times as long for 2 MB
constexpr size_t kPathBytesShown = 256;
constexpr size_t kLingerBytesMax = 64 << 20;
constexpr std::chrono::seconds kLingerTimeout{2};

// What a connection holds unread at most: the head of a request, or the head or the trailer of a
// chunk, which nothing else bounds; behind it what came with it, or what was kept.
size_t buffered_bytes_max(const ServerLimits& limits) {
  return static_cast<size_t>(limits.header_bytes_max) + kPipelinedBytesMax + 2 * kBodyReadBytes;
}

auto into(error_code& ec) {
  return asio::redirect_error(asio::use_awaitable, ec);
}

// "Sun, 06 Nov 1994 08:49:37 GMT", made anew once a second.
const std::string& http_date() {
  thread_local std::string text;
  thread_local time_t made_for = 0;
  const time_t now = std::time(nullptr);
  if (now != made_for) {
    char buffer[64];
    tm parts{};
    gmtime_r(&now, &parts);
    text.assign(buffer, std::strftime(buffer, sizeof buffer, "%a, %d %b %Y %H:%M:%S GMT", &parts));
    made_for = now;
  }
  return text;
}

// Whether a line of a head goes on in the next one: Beast reads the two as one, which others do not
// (RFC 9112, 5.2).
bool has_folded_line(std::string_view head) {
  for (size_t at = 0; (at = head.find("\r\n", at)) != head.npos;) {
    at += 2;
    if (at < head.size() && (head[at] == ' ' || head[at] == '\t')) return true;
  }
  return false;
}

// What is wrong with a head over whose body two readers could disagree, or null: whoever stands
// before this server must not see another end of the request than it does. A body in a coding that
// nobody here decodes is one: with "identity" Beast sees no body, and its bytes would be read as
// the next request. Beast itself refuses Content-Length beside chunked, and lengths that differ.
template <typename Message>
const char* framing_fault(const Message& message) {
  using beast::http::field;
  const size_t hosts = message.count(field::host);
  if (hosts > 1 || (hosts == 0 && message.version() >= 11)) return "There must be one Host.";
  if (message.count(field::content_length) > 1 ||
      message[field::content_length].find(',') != beast::string_view::npos) {
    return "There must be one Content-Length.";
  }
  if (message.count(field::transfer_encoding) == 0) return nullptr;
  const auto value = message[field::transfer_encoding];
  if (message.count(field::transfer_encoding) > 1 || message.version() < 11 ||
      !equals_ignoring_case({value.data(), value.size()}, "chunked")) {
    return "Transfer-Encoding must be chunked, alone, and of HTTP/1.1.";
  }
  return nullptr;
}

// Path and query of a request target in origin form or absolute form. The authority of the latter
// stands above the Host, as RFC 9112 has it.
void split_target(std::string_view target, Request& request) {
  if (const size_t scheme = target.find("://"); !target.starts_with('/') && scheme != target.npos) {
    const size_t path = target.find('/', scheme + 3);
    const std::string_view authority = target.substr(scheme + 3, path - (scheme + 3));
    std::erase_if(request.headers,
                  [](const Header& header) { return equals_ignoring_case(header.name, "host"); });
    request.headers.push_back({"Host", std::string(authority)});
    target = path == target.npos ? std::string_view("/") : target.substr(path);
  }
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != target.npos) request.query = target.substr(question + 1);
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, Shared& shared)
    : shared_(shared),
      stream_(std::move(socket)),
      buffer_(buffered_bytes_max(shared.options.limits)),
      wake_timer_(stream_.get_executor()) {}

Connection::~Connection() {
  shared_.bodies_bytes -= body_bytes_;
}

Task<void> Connection::run() {
  const auto self = shared_from_this();
  while (keep_alive_) {
    if (!co_await read_request()) break;
    if (!std::exchange(judged_, false)) co_await serve();
    shared_.bodies_bytes -= std::exchange(body_bytes_, 0);
    if (gone_) break;
  }
  if (!gone_) co_await linger();
  error_code ec;
  stream_.socket().close(ec);
}

void Connection::close_if_idle() {
  if (idle_) stream_.cancel();
}

void Connection::abort() {
  gone_ = aborted_ = true;
  signal();
  error_code ec;
  stream_.socket().close(ec);
}

// True once there is at least one byte of a request.
Task<bool> Connection::await_first_byte() {
  if (buffer_.size() > 0) co_return true;
  error_code ec;
  idle_ = true;
  stream_.expires_after(shared_.options.limits.idle_timeout);
  auto token = into(ec);
  auto space = buffer_.prepare(kReadBytes);
  const size_t n = co_await stream_.async_read_some(space, token);
  idle_ = false;
  buffer_.commit(n);
  co_return !ec;
}

// One request into parser_. False: the connection is to be closed; what there was to say has been
// said.
Task<bool> Connection::read_request() {
  if (!co_await await_first_byte()) {
    gone_ = true;  // nothing to linger for
    co_return false;
  }
  const ServerLimits& limits = shared_.options.limits;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(limits.header_bytes_max));
  parser_->body_limit(static_cast<uint64_t>(limits.body_bytes_max));
  stream_.expires_after(limits.header_timeout);
  const error_code ec = co_await read_header();
  take_head();
  // Of a body that is announced too large the head is there: it is judged like any other.
  if (ec && ec != beast::http::error::body_limit) {
    co_await refuse_unread(ec);
    co_return false;
  }
  if (const char* fault = framing_fault(parser_->get())) {
    unread_input_ = true;
    std::string message = fault;
    co_await refuse(Refusal::kMalformed, std::move(message));
    co_return false;
  }
  judged_ = co_await answer_from_head();
  if (judged_) co_return keep_alive_;
  if (ec) {
    co_await refuse_unread(ec);
    co_return false;
  }
  co_return co_await read_body();
}

// Beast's limit lets a head of some bytes more pass that comes at once, and overlooks one of many
// lines that comes in pieces; here every byte of the head counts, parsed or not.
Task<error_code> Connection::read_header() {
  const auto bytes_max = static_cast<size_t>(shared_.options.limits.header_bytes_max);
  error_code ec;
  for (size_t parsed = 0; true;) {
    const asio::const_buffer unread = buffer_.data();
    const size_t taken = parser_->put(unread, ec);
    // What is taken ends with whole fields, and so never between the two lines of one.
    const bool folded = has_folded_line({static_cast<const char*>(unread.data()), taken});
    buffer_.consume(taken);
    if (folded) co_return beast::http::error::bad_field;
    parsed += taken;
    if (parser_->is_header_done() && parsed > bytes_max) co_return beast::http::error::header_limit;
    if (parser_->is_header_done() || (ec && ec != beast::http::error::need_more)) break;
    if (parsed + buffer_.size() >= bytes_max) co_return beast::http::error::header_limit;
    auto token = into(ec);
    auto space = buffer_.prepare(kReadBytes);
    const size_t n = co_await stream_.async_read_some(space, token);
    buffer_.commit(n);
    if (ec) break;
  }
  co_return ec;
}

// The head of the request, as handlers and judges see it, into request_: what of it was read.
void Connection::take_head() {
  const auto& message = parser_->get();
  http_minor_ = message.version() >= 11 ? 1 : 0;
  keep_alive_ = message.keep_alive();
  request_ = {};
  const auto method = message.method_string();
  request_.method.assign(method.data(), method.size());
  for (const auto& field : message) {
    const auto name = field.name_string();
    request_.headers.push_back({std::string(name.data(), name.size()),
                                std::string(field.value().data(), field.value().size())});
  }
  split_target({message.target().data(), message.target().size()}, request_);
  request_.arrival_us = monotonic_us();
  head_only_ = request_.method == "HEAD";
}

// True: the judge had an answer. Where a body would follow, the connection is then closed: nobody
// wants to read it.
Task<bool> Connection::answer_from_head() {
  headers_.clear();
  if (!shared_.options.judge) co_return false;
  const Router::Found found = shared_.router.find(request_.method, request_.path);
  Verdict verdict = shared_.options.judge(request_, found.route);
  headers_ = std::move(verdict.headers);
  if (!verdict.answer) co_return false;
  unread_input_ = !parser_->is_done();
  if (unread_input_) keep_alive_ = false;
  const int status = verdict.answer->status;
  Exchange exchange(*this, Request{});
  exchange.headers_ = std::move(headers_);
  Response response = *std::move(verdict.answer);
  co_await send_response(exchange, std::move(response));
  report(request_, found.route, status);
  co_return true;
}

void Connection::report(const Request& request, std::string_view route, int status) {
  if (!shared_.options.on_answer) return;
  const int64_t spent_us = request.arrival_us == 0 ? 0 : monotonic_us() - request.arrival_us;
  shared_.options.on_answer(request, route, status, spent_us);
}

// Answers a request that could not be read to its end, where an answer makes sense.
Task<void> Connection::refuse_unread(error_code ec) {
  using beast::http::error;
  const ServerLimits& limits = shared_.options.limits;
  const bool malformed = ec.category() == make_error_code(error::bad_version).category() &&
                         ec != error::end_of_stream && ec != error::partial_message;
  unread_input_ = true;
  std::string message = fmt::format("Malformed HTTP request: {}.", ec.message());
  if (ec == error::header_limit) {
    message = fmt::format("The request header is over {} bytes.", limits.header_bytes_max);
    co_await refuse(Refusal::kHeaderTooLarge, std::move(message));
  } else if (ec == error::body_limit) {
    message = fmt::format("The request body is over {} bytes.", limits.body_bytes_max);
    co_await refuse(Refusal::kBodyTooLarge, std::move(message));
  } else if (malformed) {
    co_await refuse(Refusal::kMalformed, std::move(message));
  } else {
    gone_ = true;  // closed by the client, or a timeout has closed the socket
  }
}

// The rest of the request after its header. False: refused or gone. Bytes count when they are
// there, not when they are announced: who announces and does not send keeps nobody else out.
Task<bool> Connection::read_body() {
  const auto expect = request_.header("expect").value_or("");
  if (!parser_->is_done() && http_minor_ == 1 && equals_ignoring_case(expect, "100-continue")) {
    if (!co_await send("HTTP/1.1 100 Continue\r\n\r\n", "", "")) co_return false;
  }
  stream_.expires_after(shared_.options.limits.body_timeout);
  parser_->eager(true);  // all that is there at once: a chunk may hold one byte
  error_code ec;
  bool fits = true;
  while (fits && !ec && !parser_->is_done()) {
    if (body_bytes_ > static_cast<int64_t>(kReadBytes)) buffer_.reserve(kBodyReadBytes);
    auto token = into(ec);
    co_await beast::http::async_read_some(stream_, buffer_, *parser_, token);
    const auto grown = static_cast<int64_t>(parser_->get().body().capacity()) - body_bytes_;
    if (grown > 0) fits = claim_body_bytes(grown);
  }
  if (fits && !ec) co_return true;
  if (ec) {
    co_await refuse_unread(ec);
  } else {
    unread_input_ = true;
    std::string message = "Too many bytes of requests are being read; try again later.";
    co_await refuse(Refusal::kBusy, std::move(message));
  }
  co_return false;
}

// Counts bytes of a body that this connection will hold. False: all connections together would hold
// too many.
bool Connection::claim_body_bytes(int64_t bytes) {
  if (shared_.bodies_bytes + bytes > shared_.options.limits.bodies_bytes_max) return false;
  body_bytes_ += bytes;
  shared_.bodies_bytes += bytes;
  return true;
}

// Answers what never became a request and closes.
Task<void> Connection::refuse(Refusal refusal, std::string message) {
  keep_alive_ = false;
  Exchange exchange(*this, std::move(request_));
  exchange.headers_ = std::move(headers_);
  Response response = shared_.options.make_error(refusal, exchange.request_, message);
  const int status = response.status;
  co_await send_response(exchange, std::move(response));
  report(exchange.request_, "", status);
}

Task<void> Connection::serve() {
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  if (buffer_.size() == 0) buffer_.shrink_to_fit();  // an answer may take minutes
  const Router::Found found = shared_.router.find(request_.method, request_.path);
  Exchange exchange(*this, std::move(request_));
  exchange.headers_ = std::move(headers_);
  if (found.handler != nullptr) {
    co_await run_handler(*found.handler, exchange);
  } else {
    co_await answer_unrouted(exchange, found.allow);
  }
  report(exchange.request_, found.route, exchange.status_ == 0 ? 499 : exchange.status_);
}

// The path does not exist, or takes other methods: those of `allow`.
Task<void> Connection::answer_unrouted(Exchange& exchange, const std::string& allow) {
  const std::string_view path = std::string_view(exchange.request_.path).substr(0, kPathBytesShown);
  const std::string text =
      allow.empty() ? fmt::format("{} {} does not exist.", exchange.request_.method, path)
                    : fmt::format("{} takes {}.", path, allow);
  Response response = shared_.options.make_error(
      allow.empty() ? Refusal::kNotFound : Refusal::kMethodNotAllowed, exchange.request_, text);
  if (!allow.empty()) response.headers.push_back({"Allow", allow});
  co_await send_response(exchange, std::move(response));
}

Task<void> Connection::run_handler(const Handler& handler, Exchange& exchange) {
  watch();
  bool failed = false;
  try {
    co_await handler(exchange);
  } catch (const std::exception& e) {
    LOG_ERROR("handler of {} failed: {}", exchange.request_.path, e.what());
    failed = true;
  }
  if (!exchange.answered() && !gone_) {
    Response response = shared_.options.make_error(Refusal::kInternal, exchange.request_,
                                                   "The server failed to answer.");
    co_await send_response(exchange, std::move(response));
  }
  if (exchange.streaming_) {
    if (failed) keep_alive_ = false;
    co_await finish_stream(exchange);
  }
  co_await stop_watching();
}

// Lets the client read the answer: closing with unread input would send it a reset.
Task<void> Connection::linger() {
  error_code ec;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ec);
  if (!unread_input_) co_return;
  stream_.expires_after(kLingerTimeout);
  buffer_.clear();
  for (size_t total = 0; !ec && total < kLingerBytesMax;) {
    auto token = into(ec);
    auto space = buffer_.prepare(kBodyReadBytes);
    total += co_await stream_.async_read_some(space, token);
  }
}

// ---- answering

std::string Connection::make_head(const Exchange& exchange, int status,
                                  std::string_view content_type,
                                  const std::vector<Header>& headers) const {
  std::string head = fmt::format("HTTP/1.{} {} {}\r\nServer: spillway\r\nDate: {}\r\n", http_minor_,
                                 status, status_phrase(status), http_date());
  if (!content_type.empty()) head += fmt::format("Content-Type: {}\r\n", content_type);
  for (const auto* list : {&exchange.headers_, &headers}) {
    for (const Header& header : *list) {
      CHECK(header.name.find_first_of("\r\n\0", 0, 3) == std::string::npos &&
            header.value.find_first_of("\r\n\0", 0, 3) == std::string::npos);
      head += fmt::format("{}: {}\r\n", header.name, header.value);
    }
  }
  if (!keep_alive_) {
    head += "Connection: close\r\n";
  } else if (http_minor_ == 0) {
    head += "Connection: keep-alive\r\n";
  }
  return head;
}

Task<void> Connection::send_response(Exchange& exchange, Response response) {
  CHECK(!exchange.answered(), "answered twice");
  if (shared_.announce_close) keep_alive_ = false;
  exchange.status_ = response.status;
  std::string head = make_head(exchange, response.status, response.content_type, response.headers);
  if (response.status != 204) head += fmt::format("Content-Length: {}\r\n", response.body.size());
  head += "\r\n";
  const std::string_view body = head_only_ ? std::string_view() : std::string_view(response.body);
  co_await send(head, body, "");
}

Task<void> Connection::send_head(Exchange& exchange, const StreamHead& stream_head) {
  CHECK(!exchange.answered(), "answered twice");
  if (shared_.announce_close || http_minor_ == 0) keep_alive_ = false;
  exchange.status_ = 200;
  exchange.streaming_ = true;
  std::string head = make_head(exchange, 200, stream_head.content_type, stream_head.headers);
  head += http_minor_ == 0 ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n";
  co_await send(head, "", "");
}

Task<bool> Connection::send_chunk(Exchange& exchange, std::string_view bytes) {
  CHECK(exchange.streaming_, "write() without begin_stream()");
  if (bytes.empty() || head_only_) co_return !gone_;
  if (http_minor_ == 0) co_return co_await send(bytes, "", "");
  const std::string size = fmt::format("{:x}\r\n", bytes.size());
  co_return co_await send(size, bytes, "\r\n");
}

Task<void> Connection::finish_stream(Exchange& exchange) {
  exchange.streaming_ = false;
  if (http_minor_ == 1 && !head_only_) co_await send("0\r\n\r\n", "", "");
}

Task<bool> Connection::send(std::string_view a, std::string_view b, std::string_view c) {
  if (gone_) co_return false;
  const std::array<asio::const_buffer, 3> parts = {asio::buffer(a), asio::buffer(b),
                                                   asio::buffer(c)};
  stream_.expires_after(shared_.options.limits.write_timeout);
  error_code ec;
  auto token = into(ec);
  co_await asio::async_write(stream_, parts, token);
  stream_.expires_never();
  if (ec) {
    if (ec == beast::error::timeout)
      LOG_WARN("closed a client that did not read for the write timeout");
    gone_ = true;
  }
  co_return !gone_;
}

// ---- waiting and watching

Task<bool> Connection::wait(std::chrono::milliseconds timeout) {
  if (!woken_ && !gone_) {
    wake_timer_.expires_after(timeout);
    error_code ec;
    auto token = into(ec);
    co_await wake_timer_.async_wait(token);
  }
  const bool woken = woken_ || gone_;
  woken_ = false;
  co_return woken;
}

void Connection::signal() {
  woken_ = true;
  wake_timer_.cancel();
}

void Connection::watch() {
  watching_ = true;
  stream_.socket().async_wait(
      asio::ip::tcp::socket::wait_read,
      [self = shared_from_this()](error_code ec) { self->on_readable(ec); });
}

// The client has sent as much ahead as is kept. Behind unread bytes only a reset can be seen, or
// what comes back for bytes that are written.
void Connection::watch_for_reset() {
  watching_ = true;
  stream_.socket().async_wait(asio::ip::tcp::socket::wait_error,
                              [self = shared_from_this()](error_code ec) {
                                self->watching_ = false;
                                if (!ec && !self->stopping_) self->gone_ = true;
                                self->signal();
                              });
}

void Connection::on_readable(error_code ec) {
  watching_ = false;
  // Cancelled, closed by abort(), or too late to be cancelled: then what came is the next read's.
  if (ec || stopping_) return signal();
  auto space = buffer_.prepare(kReadBytes);
  const ssize_t n =
      recv(stream_.socket().native_handle(), space.data(), space.size(), MSG_DONTWAIT);
  if (n > 0) {  // the next request, ahead of time
    buffer_.commit(static_cast<size_t>(n));
    return buffer_.size() < kPipelinedBytesMax ? watch() : watch_for_reset();
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return watch();
  gone_ = true;
  signal();
}

// The wait on the socket must have ended before the next read begins. Its handler runs on this
// thread, so this must truly sleep: wait() does not once the client is gone, and a write that
// failed knows that before the handler does.
Task<void> Connection::stop_watching() {
  if (!watching_) co_return;
  stopping_ = true;
  error_code ec;
  stream_.socket().cancel(ec);
  while (watching_) {
    wake_timer_.expires_after(std::chrono::seconds(1));  // on_readable() cuts it short
    auto token = into(ec);
    co_await wake_timer_.async_wait(token);
  }
  stopping_ = false;
  woken_ = false;
}

// ---- Exchange

void Exchange::set_header(std::string name, std::string value) {
  CHECK(!answered());
  headers_.push_back({std::move(name), std::move(value)});
}

Task<void> Exchange::respond(Response response) {
  return connection_.send_response(*this, std::move(response));
}

Task<void> Exchange::begin_stream(StreamHead head) {
  co_await connection_.send_head(*this, head);
}

Task<bool> Exchange::write(std::string_view bytes) {
  return connection_.send_chunk(*this, bytes);
}

Task<bool> Exchange::wait(std::chrono::milliseconds timeout) {
  return connection_.wait(timeout);
}

std::function<void()> Exchange::waker() const {
  auto sleeper =
      std::make_shared<Wake>(connection_.shared_.hub, [weak = connection_.weak_from_this()] {
        if (const auto connection = weak.lock()) connection->signal();
      });
  return [sleeper = std::move(sleeper)] { WakeHub::wake(sleeper); };
}

void Exchange::give_up() {
  if (connection_.gone_ && !connection_.aborted_) status_ = 499;
}

bool Exchange::gone() const {
  return connection_.gone_;
}

}  // namespace http
