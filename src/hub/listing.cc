#include "hub/listing.h"

#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <limits>

#include "base/sizes.h"
#include "hub/repo_name.h"

namespace hub {
namespace {

using base::Code;

constexpr size_t kListedMax = 20;  // GGUF files in a message

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string_view text_of(const simdjson::dom::element& object, std::string_view key) {
  std::string_view text;
  return object[key].get_string().get(text) == simdjson::SUCCESS ? text : std::string_view();
}

std::optional<int64_t> size_of(const simdjson::dom::element& object) {
  int64_t size = 0;
  if (object["size"].get_int64().get(size) != simdjson::SUCCESS || size < 0) return std::nullopt;
  return size;
}

RepoFile read_file(const simdjson::dom::element& sibling) {
  RepoFile file{.path = std::string(text_of(sibling, "rfilename")), .size_bytes = size_of(sibling)};
  simdjson::dom::element lfs;
  if (sibling["lfs"].get(lfs) == simdjson::SUCCESS && lfs.is_object()) {
    // What git has is a pointer; the file's own hash and size are these.
    if (const auto size = size_of(lfs)) file.size_bytes = size;
    if (is_hex(text_of(lfs, "sha256"), 64)) file.checksum = text_of(lfs, "sha256");
  } else if (is_hex(text_of(sibling, "blobId"), 40)) {
    file.checksum = text_of(sibling, "blobId");
  }
  return file;
}

bool is_gguf(const RepoFile& file) {
  return file.path.ends_with(".gguf");
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// model-00001-of-00003.gguf
bool is_part(const std::string& path) {
  return path.size() > 20 && path.compare(path.size() - 20, 1, "-") == 0 &&
         path.compare(path.size() - 14, 4, "-of-") == 0;
}

// Whether `word` stands in the file's name between characters that end a word; projectors of images
// are no models.
bool names_quantisation(const std::string& path, const std::string& word) {
  const std::string name = lower(std::string_view(path).substr(path.rfind('/') + 1));
  if (name.find("mmproj") != name.npos) return false;
  const auto ends_word = [](char c) { return c == '-' || c == '.'; };
  for (size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
    if (at > 0 && ends_word(name[at - 1]) && ends_word(name[at + word.size()])) return true;
  }
  return false;
}

// "model-Q4_K_M.gguf (4.6 GiB), ..."
std::string list_ggufs(const Listing& listing) {
  std::vector<std::string> names;
  size_t more = 0;
  for (const RepoFile& file : listing.files) {
    if (!is_gguf(file)) continue;
    if (names.size() == kListedMax && ++more) continue;
    const std::string size =
        file.size_bytes ? base::format_bytes(*file.size_bytes) : std::string("size not known");
    names.push_back(fmt::format("{} ({})", printable(file.path), size));
  }
  return fmt::format("{}{}", fmt::join(names, ", "),
                     more > 0 ? fmt::format(", and {} more", more) : "");
}

}  // namespace

const RepoFile* Listing::find(std::string_view path) const {
  for (const RepoFile& file : files) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

base::Result<Listing> parse_listing(std::string_view source, std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto failed = parser.parse(json.data(), json.size()).get(root)) {
    return base::error(Code::kIo, "{}: expected JSON, found '{}' ({})", source,
                       printable(json.substr(0, 40)), simdjson::error_message(failed));
  }
  Listing listing{.commit = std::string(text_of(root, "sha"))};
  if (!is_commit(listing.commit)) {
    return base::error(Code::kIo, "{}: key 'sha': expected a commit's 40 hex digits, found '{}'",
                       source, printable(listing.commit));
  }
  simdjson::dom::array siblings;
  if (root["siblings"].get_array().get(siblings) != simdjson::SUCCESS) {
    return base::error(Code::kIo, "{}: key 'siblings': expected the repository's files", source);
  }
  for (const simdjson::dom::element sibling : siblings) {
    RepoFile file = read_file(sibling);
    if (!is_repo_path(file.path)) {
      return base::error(Code::kIo,
                         "{}: key 'siblings': expected a path inside the repository, found '{}'; "
                         "nothing was fetched",
                         source, printable(file.path));
    }
    listing.files.push_back(std::move(file));
  }
  return listing;
}

base::Result<std::vector<std::string>> parse_shards(std::string_view source,
                                                    std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::dom::object weight_map;
  if (parser.parse(json.data(), json.size()).get(root) != simdjson::SUCCESS ||
      root["weight_map"].get_object().get(weight_map) != simdjson::SUCCESS) {
    return base::error(Code::kIo, "{}: expected JSON with an object 'weight_map'", source);
  }
  std::vector<std::string> shards;
  for (const auto& tensor : weight_map) {
    std::string_view shard;
    if (tensor.value.get_string().get(shard) != simdjson::SUCCESS || !is_repo_path(shard) ||
        shard.find('/') != shard.npos || !shard.ends_with(".safetensors")) {
      return base::error(Code::kIo,
                         "{}: expected the name of a .safetensors file beside it, found '{}'",
                         source, printable(shard));
    }
    if (shards.empty() || shards.back() != shard) shards.emplace_back(shard);
  }
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  return shards;
}

std::vector<RepoFile> side_files(const Listing& listing) {
  std::vector<RepoFile> wanted;
  for (const RepoFile& file : listing.files) {
    const std::string& path = file.path;
    if (path.find('/') != path.npos) continue;
    const bool tokenizer =
        path.starts_with("tokenizer") && (path.ends_with(".json") || path.ends_with(".model"));
    if (tokenizer || path.starts_with("chat_template.") || path == "config.json" ||
        path == "generation_config.json" || path == "special_tokens_map.json") {
      wanted.push_back(file);
    }
  }
  return wanted;
}

base::Result<void> check_has_safetensors(const std::string& id, const Listing& listing) {
  const bool weights = listing.find(kWholeWeights) || listing.find(kWeightIndex);
  if (weights && listing.find("config.json")) return {};
  const auto first = std::find_if(listing.files.begin(), listing.files.end(), is_gguf);
  if (first != listing.files.end()) {
    return base::error(Code::kNotFound, "{} holds GGUF files: name one, as in {}:{}. There are {}",
                       id, id, printable(first->path), list_ggufs(listing));
  }
  const bool pickled =
      std::any_of(listing.files.begin(), listing.files.end(), [](const RepoFile& file) {
        return file.path.ends_with(".bin") || file.path.ends_with(".pth");
      });
  return base::error(Code::kNotFound, "{}: expected config.json and {} or {}, found {}", id,
                     kWholeWeights, kWeightIndex,
                     pickled   ? "pickled weights (.bin, .pth), which are not read"
                     : weights ? "no config.json"
                               : "neither");
}

base::Result<RepoFile> choose_gguf(const std::string& id, const Listing& listing,
                                   const std::string& wanted) {
  std::vector<RepoFile> chosen;
  if (const RepoFile* file = listing.find(wanted); file != nullptr && is_gguf(*file)) {
    chosen = {*file};
  } else {
    for (const RepoFile& candidate : listing.files) {
      if (is_gguf(candidate) && names_quantisation(candidate.path, lower(wanted))) {
        chosen.push_back(candidate);
      }
    }
  }
  if (!chosen.empty() && is_part(chosen[0].path)) {
    return base::error(Code::kUnsupported,
                       "{}: {} is a part of a split file, which is not read: merge the parts "
                       "(llama-gguf-split --merge) and give the path of the whole",
                       id, printable(chosen[0].path));
  }
  if (chosen.size() == 1) return chosen[0];
  const std::string there_are = list_ggufs(listing);
  return base::error(Code::kNotFound, "{} has {} GGUF file for '{}'; there are {}", id,
                     chosen.empty() ? "no" : "more than one", printable(wanted),
                     there_are.empty() ? "none" : there_are);
}

}  // namespace hub
