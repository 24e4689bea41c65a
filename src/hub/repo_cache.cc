#include "hub/repo_cache.h"

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

namespace hub {
namespace {

namespace fs = std::filesystem;
using base::Code;

constexpr int kDepthMax = 16;  // of folders in a snapshot

constexpr const char* kCacheTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# A folder of models that can be fetched again; made by spillway.\n"
    "# See https://bford.info/cachedir/\n";

base::Result<void> make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return base::error(Code::kIo, "cannot make {}: {}", path.string(), error.message());
  return {};
}

base::Result<void> write_small(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return base::error(Code::kIo, "cannot write {}: {}", path.string(), strerror(errno));
  return {};
}

}  // namespace

RepoCache::RepoCache(std::string folder, const std::string& repo_id) : folder_(std::move(folder)) {
  std::string name = "models--" + repo_id;
  if (const size_t slash = name.find('/'); slash != name.npos) name.replace(slash, 1, "--");
  repo_folder_ = folder_ + "/" + name;
  locks_folder_ = folder_ + "/.locks/" + name;
}

std::string RepoCache::blob(const std::string& checksum) const {
  return repo_folder_ + "/blobs/" + checksum;
}

std::string RepoCache::part(const std::string& checksum) const {
  return blob(checksum) + ".incomplete";
}

std::string RepoCache::snapshot(const std::string& commit) const {
  return repo_folder_ + "/snapshots/" + commit;
}

std::string RepoCache::file(const std::string& commit, const std::string& path) const {
  return snapshot(commit) + "/" + path;
}

bool RepoCache::has_file(const std::string& commit, const std::string& path) const {
  std::error_code error;
  return fs::is_regular_file(file(commit, path), error);
}

std::optional<std::string> RepoCache::find_commit(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  std::ifstream file(repo_folder_ + "/refs/" + revision);
  std::string commit(40, '\0');
  file.read(commit.data(), 40);
  if (file.gcount() != 40 || !is_commit(commit)) return std::nullopt;
  return commit;
}

Listing RepoCache::list_snapshot(const std::string& commit) const {
  Listing listing{.commit = commit};
  const fs::path top = snapshot(commit);
  std::error_code error;
  for (fs::recursive_directory_iterator it(top, error), end; !error && it != end;
       it.increment(error)) {
    if (it.depth() >= kDepthMax) it.disable_recursion_pending();
    std::error_code gone;
    if (!it->is_regular_file(gone)) continue;  // follows the link
    const auto size = static_cast<int64_t>(it->file_size(gone));
    if (gone) continue;
    listing.files.push_back(
        {.path = it->path().lexically_relative(top).generic_string(), .size_bytes = size});
  }
  std::sort(listing.files.begin(), listing.files.end(),
            [](const RepoFile& a, const RepoFile& b) { return a.path < b.path; });
  return listing;
}

base::Result<void> RepoCache::make_folders() const {
  RETURN_IF_ERROR(make_folder(repo_folder_ + "/blobs"));
  RETURN_IF_ERROR(make_folder(locks_folder_));
  const fs::path tag = folder_ + "/CACHEDIR.TAG";
  std::error_code error;
  if (!fs::exists(tag, error)) RETURN_IF_ERROR(write_small(tag, kCacheTag));
  return {};
}

base::Result<LockFile> RepoCache::lock(const std::string& checksum,
                                       const std::function<bool()>& cancelled) const {
  return LockFile::take(locks_folder_ + "/" + checksum + ".lock", cancelled);
}

base::Result<void> RepoCache::link(const std::string& commit, const RepoFile& file) const {
  const fs::path name = this->file(commit, file.path);
  RETURN_IF_ERROR(make_folder(name.parent_path()));
  const fs::path target = fs::path(blob(file.checksum)).lexically_relative(name.parent_path());
  const fs::path fresh = fmt::format("{}.{}.new", name.string(), getpid());
  std::error_code error;
  fs::remove(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (!error) fs::rename(fresh, name, error);  // over one whose blob is gone, too
  if (error) return base::error(Code::kIo, "cannot write {}: {}", name.string(), error.message());
  return {};
}

base::Result<void> RepoCache::write_ref(const std::string& revision,
                                        const std::string& commit) const {
  if (find_commit(revision) == commit) return {};
  const fs::path name = repo_folder_ + "/refs/" + revision;
  RETURN_IF_ERROR(make_folder(name.parent_path()));
  const fs::path fresh = fmt::format("{}.{}.new", name.string(), getpid());
  RETURN_IF_ERROR(write_small(fresh, commit));
  std::error_code error;
  fs::rename(fresh, name, error);
  if (error) return base::error(Code::kIo, "cannot write {}: {}", name.string(), error.message());
  return {};
}

base::Result<int64_t> RepoCache::free_bytes() const {
  struct statvfs about;
  const std::string where = repo_folder_ + "/blobs";
  if (statvfs(where.c_str(), &about) != 0) {
    return base::error(Code::kIo, "cannot tell the space in {}: {}", where, strerror(errno));
  }
  const double bytes = static_cast<double>(about.f_bavail) * static_cast<double>(about.f_frsize);
  return static_cast<int64_t>(std::min(bytes, 9e18));
}

}  // namespace hub
