#include "http/client_wire.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

namespace http {
namespace {

namespace beast = boost::beast;
using Parser = beast::http::response_parser<beast::http::string_body>;

// Takes complete events off the front of `text`. False: the receiver wants no more.
bool deliver_events(std::string& text, const ResponseReader::OnEvent& on_event) {
  size_t begin = 0;
  for (size_t end; (end = text.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
    const std::string_view event = std::string_view(text).substr(begin, end - begin);
    constexpr std::string_view kData = "data: ";
    if (event.starts_with(kData) && !on_event(event.substr(kData.size()))) return false;
  }
  text.erase(0, begin);
  return true;
}

}  // namespace

std::string request_bytes(const Client::Call& call, const std::string& host, uint16_t port) {
  std::string bytes =
      fmt::format("{} {} HTTP/1.1\r\nHost: {}:{}\r\n", call.method, call.path, host, port);
  for (const Header& header : call.headers)
    bytes += fmt::format("{}: {}\r\n", header.name, header.value);
  if (!call.body.empty()) bytes += "Content-Type: application/json\r\n";
  bytes += fmt::format("Content-Length: {}\r\n\r\n", call.body.size());
  return bytes + call.body;
}

struct ResponseReader::State {
  const OnEvent* on_event;
  Parser parser;
  std::string pending;  // received, not yet parsed
  std::string body;     // for streams: what is not yet a whole event
  bool wanted = true;
};

ResponseReader::ResponseReader(const OnEvent* on_event, bool head_only)
    : state_(std::make_unique<State>()) {
  state_->on_event = on_event;
  state_->parser.eager(true);
  state_->parser.skip(head_only);
  state_->parser.body_limit(boost::none);
}
ResponseReader::~ResponseReader() = default;

base::Result<bool> ResponseReader::take(std::string_view bytes) {
  State& s = *state_;
  boost::system::error_code ec;
  s.pending.append(bytes);
  size_t used = 1;
  while (!ec && used > 0 && !s.pending.empty() && !s.parser.is_done()) {
    used = s.parser.put(boost::asio::buffer(s.pending), ec);
    s.pending.erase(0, used);
  }
  if (ec == beast::http::error::need_more) ec = {};
  if (bytes.empty() && !s.parser.got_some()) {
    // Beast takes the end of nothing for an empty answer with status 200.
    return base::error(base::Code::kIo, "the connection ended before an answer");
  }
  if (bytes.empty() && !ec) s.parser.put_eof(ec);
  if (ec) return base::error(base::Code::kIo, "broken answer: {}", ec.message());
  s.body += std::exchange(s.parser.get().body(), {});
  const bool events =
      s.parser.is_header_done() && s.on_event != nullptr &&
      s.parser.get()[beast::http::field::content_type].starts_with("text/event-stream");
  if (events) s.wanted = deliver_events(s.body, *s.on_event);
  return !s.wanted || s.parser.is_done();
}

bool ResponseReader::begun() const {
  return state_->parser.got_some();
}

bool ResponseReader::reusable() const {
  return state_->wanted && state_->parser.keep_alive();
}

Response ResponseReader::response() {
  Response response;
  response.status = state_->parser.get().result_int();
  for (const auto& field : state_->parser.get()) {
    const auto name = field.name_string();
    response.headers.push_back({std::string(name.data(), name.size()),
                                std::string(field.value().data(), field.value().size())});
    if (equals_ignoring_case(response.headers.back().name, "content-type")) {
      response.content_type = response.headers.back().value;
    }
  }
  response.body = std::move(state_->body);
  return response;
}

}  // namespace http
