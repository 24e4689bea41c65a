#include "store/disk_shelf.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/sizes.h"
#include "store/disk_record.h"

namespace store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "aside-";
constexpr size_t kOwnerChars = 32;
constexpr const char* kIndex = "index.sqlite";
constexpr const char* kTierFiles[] = {kIndex, "index.sqlite-wal", "index.sqlite-shm",
                                      "index.sqlite-journal", "pages.spillway"};

std::string owner_of(const std::string& identity) {
  const Digest d = digest(identity);
  return fmt::format("{:016x}{:016x}", d.high, d.low);
}

bool is_owner(std::string_view text) {
  return text.size() == kOwnerChars &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// "" where there is none, or something else.
std::string read_owner(const std::string& path) {
  char text[kOwnerChars + 1] = {};
  std::ifstream file(path, std::ios::binary);
  file.read(text, sizeof text);
  const std::string_view found(text, static_cast<size_t>(file.gcount()));
  return is_owner(found) ? std::string(found) : "";
}

void move_files(const std::string& from, const std::string& to) {
  for (const char* name : kTierFiles) {
    std::error_code none;  // not all of them are there
    fs::rename(from + "/" + name, to + "/" + name, none);
  }
}

int64_t bytes_on_disk(const std::string& folder) {
  int64_t bytes = 0;
  for (const char* name : kTierFiles) {
    struct stat file{};
    if (::stat((folder + "/" + name).c_str(), &file) == 0) bytes += int64_t{file.st_blocks} * 512;
  }
  return bytes;
}

}  // namespace

DiskShelf::DiskShelf(const std::string& path, const std::string& identity, int64_t capacity_bytes)
    : path_(path), capacity_bytes_(capacity_bytes) {
  swap(owner_of(identity));
  list();
  make_room(bytes_on_disk(path_));
}

// A crash on the way leaves files of both in one place: their index or their records are then found
// to be of another model, and that is all.
void DiskShelf::swap(const std::string& owner) {
  const std::string before = read_owner(path_ + "/owner");
  const auto has_files = [](const std::string& folder) {
    std::error_code failed;
    return fs::exists(folder + "/" + kIndex, failed);
  };
  const auto folder_of = [&](const std::string& whose) {
    return fmt::format("{}/{}{}", path_, kPrefix, whose);
  };
  std::error_code failed;
  if (before != owner) {
    if (!before.empty() && has_files(path_)) {
      const std::string aside = folder_of(before);
      fs::remove_all(aside, failed);
      if (fs::create_directory(aside, failed)) move_files(path_, aside);
      LOG_INFO("disk tier: what another model or configuration left is set aside, in {}", aside);
    }
    std::ofstream(path_ + "/owner", std::ios::binary | std::ios::trunc) << owner;
  }
  const std::string own = folder_of(owner);
  if (!has_files(own) || has_files(path_)) return;
  move_files(own, path_);
  fs::remove_all(own, failed);
}

void DiskShelf::list() {
  std::vector<std::pair<fs::file_time_type, Aside>> found;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, failed)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !is_owner(std::string_view(name).substr(kPrefix.size())) ||
        !entry.is_directory(failed) || entry.is_symlink(failed))
      continue;
    const std::string folder = entry.path().string();
    found.push_back({entry.last_write_time(failed), {folder, bytes_on_disk(folder)}});
  }
  std::ranges::sort(found, [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [time, aside] : found) {
    aside_bytes_ += aside.bytes;
    aside_.push_back(std::move(aside));
  }
}

void DiskShelf::make_room(int64_t own_bytes) {
  while (own_bytes + aside_bytes_ > capacity_bytes_ && give_up_one()) {
  }
}

bool DiskShelf::give_up_one() {
  if (aside_.empty()) return false;
  Aside oldest = std::move(aside_.back());
  aside_.pop_back();
  aside_bytes_ -= oldest.bytes;
  LOG_INFO("disk tier: {} is given up, {} that another model or configuration left", oldest.path,
           base::format_bytes(oldest.bytes));
  deleting_.emplace_back([path = std::move(oldest.path)] {
    std::error_code failed;
    fs::remove_all(path, failed);
  });
  return true;
}

}  // namespace store
