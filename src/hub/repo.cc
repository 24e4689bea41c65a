#include "hub/repo.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/sizes.h"
#include "hub/checksum.h"
#include "hub/http_client.h"
#include "hub/listing.h"
#include "hub/repo_cache.h"

namespace hub {
namespace {

namespace fs = std::filesystem;
using base::Code;
using Clock = std::chrono::steady_clock;

constexpr int64_t kListingBytesMax = 16 << 20;
constexpr int64_t kIndexBytesMax = 64 << 20;
constexpr int64_t kSideFileBytesMax = int64_t{1} << 30;
constexpr int64_t kFileBytesMax = int64_t{1} << 45;  // so that no sum of sizes overflows
constexpr size_t kFilesMax = 10000;
constexpr int64_t kSpareBytes = 64 << 20;  // that a fetch leaves free
constexpr int64_t kLoggedBytes = 64 << 20;
constexpr int kTries = 5;
constexpr std::chrono::milliseconds kProgressInterval{500};

int64_t bytes_max_of(const std::string& path) {
  if (path.ends_with(".safetensors") || path.ends_with(".gguf")) return kFileBytesMax;
  return path == kWeightIndex ? kIndexBytesMax : kSideFileBytesMax;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

base::Result<std::string> read_small(const std::string& path, int64_t bytes_max) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return base::error(Code::kIo, "cannot read {}: {}", path, error.message());
  if (size > static_cast<uintmax_t>(bytes_max)) {
    return base::error(Code::kIo, "{}: expected at most {}, found {} bytes", path,
                       base::format_bytes(bytes_max), size);
  }
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    return base::error(Code::kIo, "cannot read {}: {}", path, strerror(errno));
  }
  return text;
}

// The weight files that a model of safetensors has in the cache: kNotFound names one that is
// missing.
base::Result<void> check_weights(const RepoCache& cache, const std::string& commit) {
  if (cache.has_file(commit, kWholeWeights)) return {};
  if (!cache.has_file(commit, kWeightIndex)) {
    return base::error(Code::kNotFound, "{} is missing", kWholeWeights);
  }
  const std::string path = cache.file(commit, kWeightIndex);
  ASSIGN_OR_RETURN(const std::string index, read_small(path, kIndexBytesMax));
  ASSIGN_OR_RETURN(const std::vector<std::string> shards, parse_shards(path, index));
  for (const std::string& shard : shards) {
    if (!cache.has_file(commit, shard)) {
      return base::error(Code::kNotFound, "{} is missing", printable(shard));
    }
  }
  return {};
}

// Only what is whole. Errors: kNotFound, which says what is missing.
base::Result<std::string> find_in_cache(const RepoCache& cache, const RepoName& name,
                                        const RepoOptions& options) {
  const std::optional<std::string> commit = cache.find_commit(name.revision);
  if (!commit) return base::error(Code::kNotFound, "it was never fetched");
  const Listing there = cache.list_snapshot(*commit);
  if (!name.file.empty()) {
    ASSIGN_OR_RETURN(const RepoFile file, choose_gguf(name.id, there, name.file));
    return cache.file(*commit, file.path);
  }
  if (!there.find("config.json")) return base::error(Code::kNotFound, "config.json is missing");
  if (options.weights) RETURN_IF_ERROR(check_weights(cache, *commit));
  return cache.snapshot(*commit);
}

// One fetch: who is asked, what for, and how far it is.
class Fetch {
 public:
  Fetch(const RepoName& name, const RepoOptions& options, const RepoCache& cache, HttpClient client,
        bool has_token)
      : name_(name),
        options_(options),
        cache_(cache),
        client_(std::move(client)),
        has_token_(has_token) {}

  base::Result<Listing> ask(int tries);
  // Fetches what is missing of the listing's model and returns its path.
  base::Result<std::string> run(const Listing& listing);

 private:
  std::string url_of(const std::string& commit, const std::string& path) const;
  base::Error refused(const HttpReply& reply, const std::string& what) const;
  base::Result<std::vector<RepoFile>> weight_files(const Listing& listing);
  base::Result<void> fetch_all(std::vector<RepoFile> files, const std::string& commit);
  base::Result<void> complete(RepoFile* file, const std::string& commit);
  base::Result<void> ask_about(RepoFile* file, const std::string& commit);
  void note(const Listing& listing);
  base::Result<void> check_space(const std::vector<RepoFile>& files);
  base::Result<void> fetch_one(const RepoFile& file, const std::string& commit);
  base::Result<void> fetch_blob(const RepoFile& file, const std::string& commit);
  void show(int64_t bytes);
  void clear_line() const {
    if (options_.before_log) options_.before_log();
  }

  const RepoName& name_;
  const RepoOptions& options_;
  const RepoCache& cache_;
  HttpClient client_;
  const bool has_token_;
  FetchProgress progress_;
  int64_t bytes_before_ = 0;    // of files that are whole, this one not counted in
  int64_t bytes_at_start_ = 0;  // that an earlier fetch had left
  Clock::time_point began_, shown_;
};

std::string Fetch::url_of(const std::string& commit, const std::string& path) const {
  return fmt::format("{}/{}/resolve/{}/{}", options_.endpoint, name_.id, commit,
                     url_escape(path, true));
}

// What a status means for people.
base::Error Fetch::refused(const HttpReply& reply, const std::string& what) const {
  const std::string page = options_.endpoint + "/" + name_.id;
  if (reply.error_code == "GatedRepo" || reply.status == 403) {
    return base::error(Code::kInvalidArgument,
                       "{} is only given to those who accepted its terms: accept them at {}{}",
                       name_.id, page,
                       has_token_ ? ", with the account whose token HF_TOKEN is"
                                  : " and set HF_TOKEN to a token of that account");
  }
  if (reply.error_code == "RevisionNotFound") {
    return base::error(Code::kNotFound, "{} has no revision '{}' at {}", name_.id, name_.revision,
                       options_.endpoint);
  }
  if (reply.status == 401) {
    return base::error(Code::kInvalidArgument, "{} is private or not at {}: check the name{}",
                       name_.id, options_.endpoint,
                       has_token_ ? ", and that the token in HF_TOKEN is valid and may read it"
                                  : ", or set HF_TOKEN to a token that may read it");
  }
  if (reply.status == 404) {
    return base::error(Code::kNotFound, "there is no {} at {}: check the name",
                       what.empty() ? name_.id : fmt::format("{} in {}", what, name_.id),
                       options_.endpoint);
  }
  return base::error(Code::kIo, "{}: answered {} for {}", options_.endpoint, reply.status,
                     what.empty() ? name_.id : what);
}

base::Result<Listing> Fetch::ask(int tries) {
  const std::string url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", options_.endpoint,
                                      name_.id, url_escape(name_.revision, false));
  ASSIGN_OR_RETURN(const HttpReply reply, client_.get_text(url, kListingBytesMax, tries));
  if (reply.status != 200) return refused(reply, "");
  return parse_listing(url, reply.body);
}

base::Result<std::string> Fetch::run(const Listing& listing) {
  if (!name_.file.empty()) {
    ASSIGN_OR_RETURN(const RepoFile file, choose_gguf(name_.id, listing, name_.file));
    RETURN_IF_ERROR(fetch_all({file}, listing.commit));
    note(listing);
    return cache_.file(listing.commit, file.path);
  }
  RETURN_IF_ERROR(check_has_safetensors(name_.id, listing));
  std::vector<RepoFile> files = side_files(listing);
  if (options_.weights) {
    ASSIGN_OR_RETURN(std::vector<RepoFile> weights, weight_files(listing));
    files.insert(files.end(), weights.begin(), weights.end());
  }
  RETURN_IF_ERROR(fetch_all(std::move(files), listing.commit));
  note(listing);
  return cache_.snapshot(listing.commit);
}

// What the revision is now, for a time without network. What was fetched serves without it.
void Fetch::note(const Listing& listing) {
  const base::Result<void> written = cache_.write_ref(name_.revision, listing.commit);
  if (!written.ok()) LOG_WARN("{}: {}", name_.id, written.error().message);
}

// One file, or an index, which is fetched here, and its shards.
base::Result<std::vector<RepoFile>> Fetch::weight_files(const Listing& listing) {
  if (const RepoFile* whole = listing.find(kWholeWeights)) return std::vector<RepoFile>{*whole};
  const RepoFile& index = *listing.find(kWeightIndex);
  RETURN_IF_ERROR(fetch_all({index}, listing.commit));
  const std::string path = cache_.file(listing.commit, kWeightIndex);
  ASSIGN_OR_RETURN(const std::string text, read_small(path, kIndexBytesMax));
  ASSIGN_OR_RETURN(const std::vector<std::string> shards, parse_shards(path, text));
  std::map<std::string_view, const RepoFile*> by_path;
  for (const RepoFile& file : listing.files) by_path.emplace(file.path, &file);
  std::vector<RepoFile> files = {index};
  for (const std::string& shard : shards) {
    const auto file = by_path.find(shard);
    if (file == by_path.end()) {
      return base::error(Code::kNotFound, "{}: {} names {}, which the repository does not have",
                         name_.id, kWeightIndex, printable(shard));
    }
    files.push_back(*file->second);
  }
  return files;
}

base::Result<void> Fetch::fetch_all(std::vector<RepoFile> files, const std::string& commit) {
  std::erase_if(files, [&](const RepoFile& file) { return cache_.has_file(commit, file.path); });
  if (files.empty()) return {};
  if (files.size() > kFilesMax) {
    return base::error(Code::kTooLarge, "{}: expected at most {} files, found {}", name_.id,
                       kFilesMax, files.size());
  }
  for (RepoFile& file : files) RETURN_IF_ERROR(complete(&file, commit));
  RETURN_IF_ERROR(cache_.make_folders());
  RETURN_IF_ERROR(check_space(files));
  began_ = Clock::now();
  bytes_before_ = 0;
  progress_ = {.name = name_.id, .num_files = static_cast<int>(files.size())};
  for (const RepoFile& file : files) progress_.total_bytes += *file.size_bytes;
  LOG_INFO("fetching {} from {}: {} {}, {}", name_.id, options_.endpoint, files.size(),
           files.size() == 1 ? "file" : "files", base::format_bytes(progress_.total_bytes));
  for (const RepoFile& file : files) {
    progress_.file = file.path;
    ++progress_.file_number;
    RETURN_IF_ERROR(fetch_one(file, commit));
    bytes_before_ += *file.size_bytes;
  }
  clear_line();
  LOG_INFO("fetched {} in {:.1f} s", name_.id, seconds_since(began_));
  return {};
}

// Size and checksum where the listing does not have them: as the file's own headers say.
base::Result<void> Fetch::complete(RepoFile* file, const std::string& commit) {
  if (!file->size_bytes || file->checksum.empty()) RETURN_IF_ERROR(ask_about(file, commit));
  const int64_t bytes_max = bytes_max_of(file->path);
  if (*file->size_bytes <= bytes_max) return {};
  return base::error(Code::kTooLarge, "{}: {}: expected at most {}, found {} bytes", name_.id,
                     printable(file->path), base::format_bytes(bytes_max), *file->size_bytes);
}

base::Result<void> Fetch::ask_about(RepoFile* file, const std::string& commit) {
  ASSIGN_OR_RETURN(const HttpReply reply, client_.head(url_of(commit, file->path)));
  if (reply.status >= 400) return refused(reply, printable(file->path));
  const bool plain = !reply.etag.empty() && reply.etag.size() <= 128 && reply.etag[0] != '.' &&
                     std::all_of(reply.etag.begin(), reply.etag.end(), [](char c) {
                       return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                              (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
                     });
  if (!plain || !reply.size_bytes) {
    return base::error(Code::kIo, "{}: expected size and ETag of {}, found '{}'", options_.endpoint,
                       printable(file->path), printable(reply.etag));
  }
  file->checksum = reply.etag;
  file->size_bytes = reply.size_bytes;
  return {};
}

base::Result<void> Fetch::check_space(const std::vector<RepoFile>& files) {
  ASSIGN_OR_RETURN(const int64_t free_bytes, cache_.free_bytes());
  double missing = 0;  // sums of hostile sizes overflow nothing
  bytes_at_start_ = 0;
  for (const RepoFile& file : files) {
    std::error_code none;
    const auto has = fs::exists(cache_.blob(file.checksum), none)
                         ? *file.size_bytes
                         : static_cast<int64_t>(fs::file_size(cache_.part(file.checksum), none));
    const int64_t counted = none ? 0 : std::min(has, *file.size_bytes);
    missing += static_cast<double>(*file.size_bytes - counted);
    bytes_at_start_ += counted;
  }
  if (missing + kSpareBytes <= static_cast<double>(free_bytes)) return {};
  return base::error(
      Code::kTooLarge,
      "no space for {}: {:.1f} GiB are missing and {} has {:.1f} GiB free; make room, "
      "or set HF_HUB_CACHE to a folder on another disk",
      name_.id, missing / (1 << 30), cache_.folder(), static_cast<double>(free_bytes) / (1 << 30));
}

base::Result<void> Fetch::fetch_one(const RepoFile& file, const std::string& commit) {
  const Clock::time_point began = Clock::now();
  ASSIGN_OR_RETURN(const LockFile lock, cache_.lock(file.checksum, options_.cancelled));
  // Another process, or another revision, may have brought it.
  std::error_code error;
  if (!fs::exists(cache_.blob(file.checksum), error)) RETURN_IF_ERROR(fetch_blob(file, commit));
  RETURN_IF_ERROR(cache_.link(commit, file));
  if (*file.size_bytes >= kLoggedBytes) {
    clear_line();
    LOG_INFO("{}: {} ({} of {}), {} in {:.0f} s", name_.id, printable(file.path),
             progress_.file_number, progress_.num_files, base::format_bytes(*file.size_bytes),
             seconds_since(began));
  }
  return {};
}

// Leaves the checked file under its checksum. The lock is held.
base::Result<void> Fetch::fetch_blob(const RepoFile& file, const std::string& commit) {
  const std::string part = cache_.part(file.checksum);
  ASSIGN_OR_RETURN(const HttpReply reply,
                   client_.download({.url = url_of(commit, file.path),
                                     .path = part,
                                     .size_bytes = *file.size_bytes,
                                     .progress = [this](int64_t bytes) { show(bytes); }}));
  if (reply.status != 200) return refused(reply, printable(file.path));
  std::string found = file.checksum;  // of a server whose ETag is no checksum
  if (file.checksum.size() == 64) {
    ASSIGN_OR_RETURN(found, sha256_of_file(part));
  } else if (is_commit(file.checksum)) {
    ASSIGN_OR_RETURN(found, git_blob_id_of_file(part));
  }
  std::error_code error;
  if (found != file.checksum) {
    fs::remove(part, error);
    return base::error(Code::kIo,
                       "{}: {}: expected checksum {}, found {}; the file was removed, so fetch it "
                       "again",
                       name_.id, printable(file.path), file.checksum, found);
  }
  fs::rename(part, cache_.blob(file.checksum), error);
  if (error) return base::error(Code::kIo, "cannot rename {}: {}", part, error.message());
  return {};
}

void Fetch::show(int64_t bytes) {
  const Clock::time_point now = Clock::now();
  if (!options_.progress || now - shown_ < kProgressInterval) return;
  shown_ = now;
  progress_.bytes = bytes_before_ + bytes;
  const double elapsed_s = seconds_since(began_);
  const auto came = static_cast<double>(progress_.bytes - bytes_at_start_);
  progress_.bytes_per_s = elapsed_s >= 1 ? std::max(came, 0.0) / elapsed_s : 0;
  options_.progress(progress_);
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// The option's, else the file's; "" where there is none.
std::string token_of(const RepoOptions& options) {
  if (!options.token.empty() || options.token_file.empty()) return trimmed(options.token);
  const base::Result<std::string> text = read_small(options.token_file, 4096);
  return text.ok() ? trimmed(*text) : "";
}

}  // namespace

RepoOptions repo_options(const std::function<const char*(const char*)>& variable) {
  const auto get = [&](const char* name) {
    const char* value = variable(name);
    return value == nullptr ? std::string() : std::string(value);
  };
  const auto is_true = [&](const char* name) {
    std::string value = get(name);
    for (char& c : value) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
  };
  const std::string user = get("HOME");
  const auto folder = [&](const char* name) {
    const std::string value = get(name);
    return value == "~" || value.starts_with("~/") ? user + value.substr(1) : value;
  };
  RepoOptions options;
  std::string home = folder("HF_HOME");
  if (home.empty() && !folder("XDG_CACHE_HOME").empty()) {
    home = folder("XDG_CACHE_HOME") + "/huggingface";
  }
  if (home.empty() && !user.empty()) home = user + "/.cache/huggingface";
  options.cache_folder = folder("HF_HUB_CACHE");
  if (options.cache_folder.empty()) options.cache_folder = folder("HUGGINGFACE_HUB_CACHE");
  if (options.cache_folder.empty() && !home.empty()) options.cache_folder = home + "/hub";
  if (!get("HF_ENDPOINT").empty()) options.endpoint = get("HF_ENDPOINT");
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  options.offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE");
  if (is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return options;
  options.token = get("HF_TOKEN").empty() ? get("HUGGING_FACE_HUB_TOKEN") : get("HF_TOKEN");
  options.token_file = folder("HF_TOKEN_PATH");
  if (options.token_file.empty() && !home.empty()) options.token_file = home + "/token";
  return options;
}

base::Result<std::string> find_repo_model(const RepoName& name, const RepoOptions& options) {
  if (options.cache_folder.empty()) {
    return base::error(Code::kInvalidArgument,
                       "nowhere to keep {}: set HOME, HF_HOME or HF_HUB_CACHE", name.id);
  }
  const RepoCache cache(options.cache_folder, name.id);
  const base::Result<std::string> cached = find_in_cache(cache, name, options);
  if (options.offline) {
    if (cached.ok()) return *cached;
    return base::error(Code::kNotFound,
                       "HF_HUB_OFFLINE is set, and {} is not whole in {}: {}; fetch it with the "
                       "network, or give the path of a model",
                       name.id, cache.folder(), cached.error().message);
  }
  if (cached.ok() && is_commit(name.revision)) return *cached;
  const std::string token = token_of(options);
  ASSIGN_OR_RETURN(HttpClient client, HttpClient::create({.endpoint = options.endpoint,
                                                          .token = token,
                                                          .user_agent = options.user_agent,
                                                          .tries = kTries,
                                                          .cancelled = options.cancelled,
                                                          .before_log = options.before_log}));
  Fetch fetch(name, options, cache, std::move(client), !token.empty());
  base::Result<Listing> listing = fetch.ask(cached.ok() ? 1 : kTries);
  if (listing.ok()) return fetch.run(*listing);
  const base::Error& why = listing.error();
  if (!cached.ok() || why.code == Code::kCancelled) return why;
  LOG_WARN("{}; using {} as it was fetched before", why.message, name.id);
  return *cached;
}

}  // namespace hub
