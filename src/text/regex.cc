#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <utility>

#include "base/check.h"

namespace text {
namespace {

// White space as Unicode, Oniguruma and Rust have it, as members of a class.
constexpr std::string_view kSpaceMembers = "\\x09-\\x0d\\x{85}\\p{Z}";

base::Error refused(std::string_view what, std::string_view pattern) {
  return base::error(base::Code::kUnsupported, "pattern \"{}\": {} is not supported", pattern,
                     what);
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  base::Result<std::string> run() {
    while (pos_ < pattern_.size()) {
      const char c = pattern_[pos_];
      if (c == '\\') {
        RETURN_IF_ERROR(escape());
      } else if (in_class_) {
        RETURN_IF_ERROR(class_member(c));
      } else {
        RETURN_IF_ERROR(outside(c));
      }
    }
    return std::move(out_);
  }

 private:
  bool ahead(std::string_view text) const { return pattern_.substr(pos_).starts_with(text); }
  void take(size_t count) {
    out_.append(pattern_.substr(pos_, count));
    pos_ += count;
  }

  base::Result<void> class_member(char c) {
    if (c == '[') return refused("[ inside a character class", pattern_);
    if (ahead("&&")) return refused("&& inside a character class", pattern_);
    if (c == ']') in_class_ = false;
    take(1);
    return {};
  }

  base::Result<void> outside(char c) {
    if (c == '^' || c == '$') return refused(std::string_view(&c, 1), pattern_);
    if (c == '[') {
      if (ahead("[]") || ahead("[^]")) return refused("] as first member of a class", pattern_);
      in_class_ = true;
      take(ahead("[^") ? 2 : 1);
      return {};
    }
    if (c == '(') return group();
    if (ahead("{,")) return refused("{,n}", pattern_);
    if (ahead("}+")) return refused("}+", pattern_);
    take(1);
    return {};
  }

  base::Result<void> group() {
    if (ahead("(*")) return refused("(*", pattern_);
    if (!ahead("(?")) {
      take(1);
      return {};
    }
    for (std::string_view start : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (!ahead(start)) continue;
      take(start.size());
      return {};
    }
    return refused("a group of the kind " + std::string(pattern_.substr(pos_, 4)), pattern_);
  }

  base::Result<void> escape() {
    if (pos_ + 1 == pattern_.size()) return refused("a \\ at the end", pattern_);
    const char c = pattern_[pos_ + 1];
    if (c == 's' || (c == 'S' && !in_class_)) {
      if (!in_class_) out_ += c == 's' ? "[" : "[^";
      out_ += kSpaceMembers;
      if (!in_class_) out_ += ']';
      pos_ += 2;
      return {};
    }
    if (c == 'p' || c == 'P') return property();
    if (c == 'u' && pos_ + 6 <= pattern_.size()) {
      out_.append("\\x{").append(pattern_.substr(pos_ + 2, 4)).append("}");
      pos_ += 6;
      return {};
    }
    if (ahead("\\x{")) {
      const size_t close = pattern_.find('}', pos_);
      if (close == std::string_view::npos) return refused("\\x{ without }", pattern_);
      take(close + 1 - pos_);
      return {};
    }
    const bool known = std::string_view("dDrntf").find(c) != std::string_view::npos;
    if (!known && (std::isalnum(static_cast<unsigned char>(c)) || c == '_')) {
      return refused(std::string("\\") + c, pattern_);
    }
    take(2);
    return {};
  }

  // \p{L}, \p{^Lu}, \p{Han}. A bare script name means scripts with extensions to PCRE2 and without
  // them to Oniguruma.
  base::Result<void> property() {
    const size_t close = pattern_.find('}', pos_);
    if (pos_ + 2 >= pattern_.size() || pattern_[pos_ + 2] != '{' ||
        close == std::string_view::npos) {
      return refused("a property without braces", pattern_);
    }
    std::string_view name = pattern_.substr(pos_ + 3, close - pos_ - 3);
    out_.append(pattern_.substr(pos_, 3));
    if (name.starts_with('^')) {
      out_ += '^';
      name.remove_prefix(1);
    }
    if (name.size() > 2) out_ += "sc:";
    out_.append(name) += '}';
    pos_ = close + 1;
    return {};
  }

  std::string_view pattern_;
  size_t pos_ = 0;
  bool in_class_ = false;
  std::string out_;
};

// One pair of offsets serves every pattern; a thread keeps its own.
pcre2_match_data* match_data_of_thread() {
  struct Free {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  thread_local std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  CHECK(data != nullptr);
  return data.get();
}

}  // namespace

base::Result<std::string> translate_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

base::Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.empty()) {
    return base::error(base::Code::kInvalidArgument, "a pattern of a tokenizer is empty");
  }
  ASSIGN_OR_RETURN(std::string translated, translate_pattern(pattern));
  int error = 0;
  PCRE2_SIZE where = 0;
  auto code = std::make_shared<Code>();
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &where, nullptr);
  if (code->code == nullptr) {
    char message[256] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    return base::error(base::Code::kInvalidArgument, "pattern \"{}\": {} at byte {}", translated,
                       message, where);
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(code));
}

void Regex::find_all(std::string_view utf8, std::vector<Span>& out) const {
  pcre2_match_data* data = match_data_of_thread();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(utf8.data());
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data);
  size_t pos = 0;
  while (pos < utf8.size()) {
    int rc = PCRE2_ERROR_JIT_BADOPTION;
    if (code_->jit) rc = pcre2_jit_match(code_->code, subject, utf8.size(), pos, 0, data, nullptr);
    if (rc < PCRE2_ERROR_PARTIAL) {  // no JIT on this machine, or its stack is too small: the
                                     // interpreter has the heap
      rc = pcre2_match(code_->code, subject, utf8.size(), pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data, nullptr);
    }
    if (rc < 0) return;
    if (found[1] > found[0]) out.push_back({found[0], found[1]});
    pos = found[1];
    if (found[1] > found[0]) continue;
    do ++pos;  // past the character at which an empty match stands
    while (pos < utf8.size() && (static_cast<uint8_t>(utf8[pos]) & 0xC0) == 0x80);
  }
}

}  // namespace text
