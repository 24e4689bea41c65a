#include "hub/repo_name.h"

#include <algorithm>

namespace hub {
namespace {

using base::Code;

constexpr size_t kIdPartMax = 96, kRevisionMax = 250, kComponentMax = 255, kPathMax = 1024;
constexpr size_t kPrintedMax = 120;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

// Of an organisation or a model: letters, digits, `_`, `-` and `.`, the last two inside only.
bool is_id_part(std::string_view part) {
  if (part.empty() || part.size() > kIdPartMax) return false;
  if (!is_word(part.front()) || !is_word(part.back())) return false;
  if (part.find("--") != part.npos || part.find("..") != part.npos) return false;
  return std::all_of(part.begin(), part.end(),
                     [](char c) { return is_word(c) || c == '-' || c == '.'; });
}

bool is_id(std::string_view id, bool bare_too) {
  const size_t slash = id.find('/');
  if (slash == id.npos) return bare_too && is_id_part(id);
  return is_id_part(id.substr(0, slash)) && is_id_part(id.substr(slash + 1));
}

bool is_revision(std::string_view revision) {
  if (revision.empty() || revision.size() > kRevisionMax || !is_repo_path(revision)) return false;
  return is_word(revision.front()) && std::all_of(revision.begin(), revision.end(), [](char c) {
           return is_word(c) || c == '-' || c == '.' || c == '/';
         });
}

}  // namespace

base::Result<RepoName> parse_repo_name(std::string_view text) {
  const bool marked = text.starts_with("hf:");
  std::string_view rest = marked ? text.substr(3) : text;
  RepoName name;
  const size_t colon = rest.find(':');
  const bool has_file = colon != rest.npos;
  if (has_file) {
    name.file = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  const size_t at = rest.find('@');
  if (at != rest.npos) {
    name.revision = rest.substr(at + 1);
    rest = rest.substr(0, at);
  }
  name.id = rest;
  const bool like_a_path = rest.ends_with(".gguf") || rest.ends_with(".safetensors") ||
                           rest.ends_with(".json") || rest.ends_with(".git");
  if (!is_id(rest, marked) || like_a_path) {
    return base::error(marked ? Code::kInvalidArgument : Code::kNotFound,
                       "'{}': expected hf:org/name, found '{}'", printable(text), printable(rest));
  }
  if (!is_revision(name.revision)) {
    return base::error(Code::kInvalidArgument,
                       "'{}': expected a branch, a tag or a commit behind '@', found '{}'",
                       printable(text), printable(name.revision));
  }
  if (has_file && !is_repo_path(name.file)) {
    return base::error(Code::kInvalidArgument,
                       "'{}': expected a file's path or a quantisation behind ':', found '{}'",
                       printable(text), printable(name.file));
  }
  return name;
}

bool is_repo_path(std::string_view path) {
  if (path.empty() || path.size() > kPathMax) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = path.substr(begin, end - begin);
    if (component.empty() || component == "." || component == ".." ||
        component.size() > kComponentMax) {
      return false;
    }
    begin = end + 1;
  }
  return std::none_of(path.begin(), path.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f || c == '\\';
  });
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && std::all_of(text.begin(), text.end(), is_hex);
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kPrintedMax)) {
    out += c >= 0x20 && c < 0x7f ? std::string(1, c)
                                 : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text.size() > kPrintedMax ? out + "..." : out;
}

}  // namespace hub
