#include "hub/http_client.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/sizes.h"
#include "hub/repo_name.h"

namespace hub {
namespace {

using base::Code;

constexpr int kRedirectsMax = 10;
constexpr int kTriesMax = 100;  // of one download, those that brought bytes counted in
constexpr std::chrono::milliseconds kPauseMax{60'000};
constexpr std::chrono::milliseconds kTick{100};
constexpr long kTextTimeoutS = 60;
constexpr size_t kHeaderMax = 1024;  // of those that are kept
constexpr size_t kUrlMax = 16384;
constexpr int64_t kErrorBodyMax = 1 << 20;

struct FreeCurl {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// scheme://host:port of a URL in lower case; "" if it is none, or names a user.
std::string origin_of(const std::string& text) {
  const std::unique_ptr<CURLU, FreeCurl> url(curl_url());
  if (url == nullptr || curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
    return "";
  }
  const auto part = [&](CURLUPart which) {
    char* value = nullptr;
    std::string out;
    if (curl_url_get(url.get(), which, &value, CURLU_DEFAULT_PORT) == CURLUE_OK) out = value;
    curl_free(value);
    return out;
  };
  if (!part(CURLUPART_USER).empty() || !part(CURLUPART_PASSWORD).empty()) return "";
  std::string origin =
      part(CURLUPART_SCHEME) + "://" + part(CURLUPART_HOST) + ":" + part(CURLUPART_PORT);
  for (char& c : origin) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return origin.starts_with("https://") || origin.starts_with("http://") ? origin : "";
}

std::optional<int64_t> number_of(std::string_view text) {
  int64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::string without_quotes(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return std::string(etag);
}

// The headers of one answer that anybody here reads.
struct Headers {
  std::string linked_etag, etag, error_code, content_range;
  std::optional<int64_t> linked_size, content_length;

  void read(std::string_view name, std::string_view value) {
    const auto is = [&](std::string_view known) {
      return name.size() == known.size() &&
             std::equal(name.begin(), name.end(), known.begin(), [](char a, char b) {
               return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
             });
    };
    if (value.size() > kHeaderMax) return;
    if (is("x-linked-etag")) linked_etag = value;
    if (is("etag")) etag = value;
    if (is("x-error-code")) error_code = value;
    if (is("content-range")) content_range = value;
    if (is("x-linked-size")) linked_size = number_of(value);
    if (is("content-length")) content_length = number_of(value);
  }
};

// What one request of a chain of redirects needs, and what came of it.
struct Exchange {
  bool head_only = false;
  long timeout_s = 0;  // of all of it; 0: none
  int64_t first_byte = 0;
  std::string if_range;
  // Takes the body of 200 and 206; false ends the exchange. Others' bodies are dropped.
  std::function<bool(int status, const Headers& headers, std::string_view bytes)> take;

  std::function<void()> start;       // of each request; may be empty
  std::optional<base::Error> fatal;  // that `take` met: no other try would change it

  Headers headers;
  int64_t error_bytes = 0;
  CURL* curl = nullptr;
  const std::function<bool()>* cancelled = nullptr;

  int status() const {
    long code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    return static_cast<int>(code);
  }
};

size_t on_header(char* data, size_t size, size_t count, void* given) {
  auto* exchange = static_cast<Exchange*>(given);
  std::string_view line(data, size * count);
  if (line.starts_with("HTTP/")) exchange->headers = {};
  const size_t colon = line.find(':');
  if (colon == line.npos) return size * count;
  std::string_view value = line.substr(colon + 1);
  while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
  while (!value.empty() && strchr(" \t\r\n", value.back()) != nullptr) value.remove_suffix(1);
  exchange->headers.read(line.substr(0, colon), value);
  return size * count;
}

size_t on_body(char* data, size_t size, size_t count, void* given) {
  auto* exchange = static_cast<Exchange*>(given);
  const int status = exchange->status();
  if (status == 200 || status == 206) {
    const bool more = exchange->take(status, exchange->headers, {data, size * count});
    return more ? size * count : 0;
  }
  exchange->error_bytes += static_cast<int64_t>(size * count);
  return exchange->error_bytes <= kErrorBodyMax ? size * count : 0;
}

int on_progress(void* given, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto* exchange = static_cast<const Exchange*>(given);
  return *exchange->cancelled && (*exchange->cancelled)() ? 1 : 0;
}

bool passes(int status) {
  return status == 408 || status == 429 || status >= 500;
}

base::Error cancelled_error() {
  return base::error(Code::kCancelled, "stopped while fetching; what has come is kept");
}

}  // namespace

struct HttpClient::State {
  HttpOptions options;
  std::string origin;
  std::unique_ptr<CURL, FreeCurl> curl;

  base::Result<int> run(std::string url, Exchange& exchange);
  base::Result<int> run_once(const std::string& url, Exchange& exchange);
  void prepare(const std::string& url, const curl_slist* headers, Exchange& exchange);
  bool pause(int failures);
  void clear_line() const {
    if (options.before_log) options.before_log();
  }
  base::Result<HttpReply> with_tries(const std::string& url, int tries, Exchange& exchange);
};

// One request to one host; the status, whatever it is.
base::Result<int> HttpClient::State::run_once(const std::string& url, Exchange& exchange) {
  std::unique_ptr<curl_slist, FreeCurl> headers;
  const auto add = [&](const std::string& line) {
    headers.reset(curl_slist_append(headers.release(), line.c_str()));
  };
  if (!options.token.empty() && origin_of(url) == origin) {
    add("Authorization: Bearer " + options.token);
  }
  if (exchange.first_byte > 0) {
    add(fmt::format("Range: bytes={}-", exchange.first_byte));
    if (!exchange.if_range.empty()) add("If-Range: " + exchange.if_range);
  }
  prepare(url, headers.get(), exchange);
  const CURLcode code = curl_easy_perform(curl.get());
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, nullptr);
  const int status = exchange.status();
  if (code == CURLE_ABORTED_BY_CALLBACK) return cancelled_error();
  // An error's body is not wanted, so its end is not missed.
  const bool body_counts = status == 0 || status == 200 || status == 206;
  if (code == CURLE_OK || (!body_counts && code == CURLE_WRITE_ERROR)) return status;
  return base::error(Code::kIo, "{}: {}", origin_of(url), curl_easy_strerror(code));
}

void HttpClient::State::prepare(const std::string& url, const curl_slist* headers,
                                Exchange& exchange) {
  CURL* handle = curl.get();
  exchange.curl = handle;
  exchange.headers = {};
  if (exchange.start) exchange.start();
  exchange.error_bytes = 0;
  exchange.cancelled = &options.cancelled;
  curl_easy_reset(handle);  // keeps connections
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, options.user_agent.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_NOBODY, exchange.head_only ? 1L : 0L);
  curl_easy_setopt(handle, CURLOPT_TIMEOUT, exchange.timeout_s);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT,
                   static_cast<long>(options.connect_timeout.count()));
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME,
                   static_cast<long>(options.silence_timeout.count()));
  curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, 512L << 10);
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &exchange);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &exchange);
  curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(handle, CURLOPT_XFERINFODATA, &exchange);
}

// Through the redirects to an answer, or, of HEAD, to where they leave the endpoint.
base::Result<int> HttpClient::State::run(std::string url, Exchange& exchange) {
  for (int hop = 0; hop <= kRedirectsMax; ++hop) {
    ASSIGN_OR_RETURN(const int status, run_once(url, exchange));
    char* target = nullptr;
    curl_easy_getinfo(curl.get(), CURLINFO_REDIRECT_URL, &target);
    if (status < 300 || status > 399 || target == nullptr) return status;
    const std::string next = target, next_origin = origin_of(next);
    if (next_origin.empty() || next.size() > kUrlMax ||
        (url.starts_with("https://") && !next_origin.starts_with("https://"))) {
      return base::error(Code::kIo, "{}: redirects to '{}', where nothing is fetched from",
                         origin_of(url), printable(next));
    }
    if (exchange.head_only && next_origin != origin) return status;
    url = next;
  }
  return base::error(Code::kIo, "{}: more than {} redirects", origin, kRedirectsMax);
}

// Waits before the next try; false when cancelled.
bool HttpClient::State::pause(int failures) {
  std::chrono::milliseconds wait = options.first_pause * (1 << std::min(failures - 1, 10));
  curl_off_t asked_s = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RETRY_AFTER, &asked_s);
  if (asked_s > 0)
    wait = std::max(wait, std::chrono::milliseconds(std::min<curl_off_t>(asked_s, 60) * 1000));
  for (wait = std::min(wait, kPauseMax); wait.count() > 0; wait -= kTick) {
    if (options.cancelled && options.cancelled()) return false;
    std::this_thread::sleep_for(std::min(wait, kTick));
  }
  return true;
}

// For what starts over each time.
base::Result<HttpReply> HttpClient::State::with_tries(const std::string& url, int tries,
                                                      Exchange& exchange) {
  for (int failures = 1;; ++failures) {
    base::Result<int> status = run(url, exchange);
    if (exchange.fatal) return std::move(*exchange.fatal);
    if (status.ok() && !passes(*status)) {
      const Headers& headers = exchange.headers;
      return HttpReply{
          .status = *status,
          .error_code = headers.error_code,
          .etag = without_quotes(headers.linked_etag.empty() ? headers.etag : headers.linked_etag),
          .size_bytes = headers.linked_size ? headers.linked_size : headers.content_length};
    }
    base::Error error =
        status.ok() ? base::error(Code::kOverloaded, "{}: answered {}", origin_of(url), *status)
                    : std::move(status).error();
    if (error.code == Code::kCancelled || failures >= tries) return error;
    clear_line();
    LOG_WARN("{}; trying again", error.message);
    if (!pause(failures)) return cancelled_error();
  }
}

base::Result<HttpClient> HttpClient::create(HttpOptions options) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  auto state = std::make_unique<State>();
  state->origin = origin_of(options.endpoint);
  if (state->origin.empty()) {
    return base::error(Code::kInvalidArgument,
                       "HF_ENDPOINT: expected https://host or http://host:port, found '{}'",
                       printable(options.endpoint));
  }
  for (const char c : options.token) {
    if (c <= ' ' || c > '~') {
      return base::error(Code::kInvalidArgument,
                         "HF_TOKEN: expected printable ASCII without spaces; it is something else");
    }
  }
  state->options = std::move(options);
  state->curl.reset(curl_easy_init());
  if (ready != CURLE_OK || state->curl == nullptr) {
    return base::error(Code::kInternal, "libcurl cannot be used: {}", curl_easy_strerror(ready));
  }
  return HttpClient(std::move(state));
}

HttpClient::HttpClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient::~HttpClient() = default;

base::Result<HttpReply> HttpClient::get_text(const std::string& url, int64_t bytes_max, int tries) {
  std::string body;
  Exchange exchange{.timeout_s = kTextTimeoutS};
  exchange.start = [&] { body.clear(); };
  exchange.take = [&](int, const Headers&, std::string_view bytes) {
    if (static_cast<int64_t>(body.size() + bytes.size()) > bytes_max) {
      exchange.fatal = base::error(Code::kIo, "{}: expected at most {}, found more", url,
                                   base::format_bytes(bytes_max));
      return false;
    }
    body += bytes;
    return true;
  };
  ASSIGN_OR_RETURN(HttpReply reply, state_->with_tries(url, tries, exchange));
  reply.body = std::move(body);
  return reply;
}

base::Result<HttpReply> HttpClient::head(const std::string& url) {
  Exchange exchange{.head_only = true, .timeout_s = kTextTimeoutS};
  return state_->with_tries(url, state_->options.tries, exchange);
}

namespace {

// The part of a file while its bytes come.
class Part {
 public:
  static base::Result<Part> open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0666);
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0) {
      const int why = errno;
      if (fd >= 0) close(fd);
      return base::error(Code::kIo, "cannot write {}: {}", path, strerror(why));
    }
    return Part(path, fd, about.st_size);
  }
  Part(Part&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}
  ~Part() {
    if (fd_ >= 0) close(fd_);
  }

  int64_t bytes() const { return bytes_; }
  base::Result<void> empty() {
    if (ftruncate(fd_, 0) != 0) return failed();
    bytes_ = 0;
    return {};
  }
  base::Result<void> append(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return failed();
      bytes_ += written;
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return {};
  }
  // Before it gets the name of a whole file, which nobody checks again.
  base::Result<void> sync() { return fdatasync(fd_) == 0 ? base::Result<void>() : failed(); }

 private:
  Part(std::string path, int fd, int64_t bytes) : path_(std::move(path)), fd_(fd), bytes_(bytes) {}
  base::Error failed() const {
    return base::error(Code::kIo, "cannot write {}: {}", path_, strerror(errno));
  }
  std::string path_;
  int fd_;
  int64_t bytes_;
};

// Whether `content_range` begins where the part ends, in a file of this size.
bool continues(const std::string& content_range, int64_t bytes, int64_t size_bytes) {
  const std::string begin = fmt::format("bytes {}-", bytes);
  return content_range.starts_with(begin) &&
         (content_range.ends_with(fmt::format("/{}", size_bytes)) || content_range.ends_with("/*"));
}

// What the first bytes of an answer are checked for; false ends it.
base::Result<bool> begin_answer(int status, const Headers& headers, const Download& download,
                                Part& part) {
  if (status == 206 && !continues(headers.content_range, part.bytes(), download.size_bytes)) {
    RETURN_IF_ERROR(part.empty());  // asked for from the start the next time
    return false;
  }
  if (status == 200) {
    if (headers.content_length && *headers.content_length != download.size_bytes) {
      return base::error(Code::kIo, "{}: expected {} bytes, found {}", download.url,
                         download.size_bytes, *headers.content_length);
    }
    RETURN_IF_ERROR(part.empty());
  }
  return true;
}

base::Result<bool> take_bytes(std::string_view bytes, const Download& download, Part& part) {
  if (static_cast<int64_t>(bytes.size()) > download.size_bytes - part.bytes()) {
    RETURN_IF_ERROR(part.empty());
    return base::error(Code::kIo, "{}: expected {} bytes, found more; nothing was kept",
                       download.url, download.size_bytes);
  }
  RETURN_IF_ERROR(part.append(bytes));
  if (download.progress) download.progress(part.bytes());
  return true;
}

}  // namespace

base::Result<HttpReply> HttpClient::download(const Download& download) {
  ASSIGN_OR_RETURN(Part part, Part::open(download.path));
  if (part.bytes() > download.size_bytes) RETURN_IF_ERROR(part.empty());
  int64_t most = part.bytes();
  std::string validator;  // of the bytes that this call has got
  int failures = 0;
  for (int tries = 1; part.bytes() < download.size_bytes; ++tries) {
    Exchange exchange{.first_byte = part.bytes(), .if_range = validator};
    bool begun = false;
    exchange.start = [&] { begun = false; };
    exchange.take = [&](int status, const Headers& headers, std::string_view bytes) {
      base::Result<bool> more =
          begun ? base::Result<bool>(true) : begin_answer(status, headers, download, part);
      begun = true;
      if (more.ok() && *more) more = take_bytes(bytes, download, part);
      if (!more.ok()) exchange.fatal = more.error();
      return more.ok() && *more;
    };
    const base::Result<int> status = state_->run(download.url, exchange);
    if (exchange.fatal) return std::move(*exchange.fatal);
    if (!status.ok() && status.error().code == Code::kCancelled) return status.error();
    if (exchange.headers.etag.starts_with('"')) validator = exchange.headers.etag;
    if (status.ok() && *status == 416) {  // the part is none of this file
      RETURN_IF_ERROR(part.empty());
    } else if (status.ok() && *status != 200 && *status != 206 && !passes(*status)) {
      return HttpReply{.status = *status, .error_code = exchange.headers.error_code};
    }
    if (part.bytes() == download.size_bytes) break;
    failures = part.bytes() > most ? 1 : failures + 1;
    most = std::max(most, part.bytes());
    const std::string why = !status.ok() ? status.error().message
                            : passes(*status)
                                ? fmt::format("{}: answered {}", origin_of(download.url), *status)
                                : fmt::format("{}: the answer broke off", origin_of(download.url));
    if (failures >= state_->options.tries || tries >= kTriesMax) {
      return base::error(Code::kOverloaded, "{} ({} of {} bytes have come and are kept)", why,
                         part.bytes(), download.size_bytes);
    }
    state_->clear_line();
    LOG_WARN("{}; trying again from byte {}", why, part.bytes());
    if (!state_->pause(failures)) return cancelled_error();
  }
  RETURN_IF_ERROR(part.sync());
  return HttpReply{.status = 200};
}

std::string url_escape(const std::string& text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keep_slashes);
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace hub
