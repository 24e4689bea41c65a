// The folder in which huggingface_hub keeps what it has fetched, read and written as it does:
//
//   models--org--name/refs/main                   a commit's 40 hex digits
//   models--org--name/blobs/CHECKSUM              a file's bytes, under its checksum
//   models--org--name/blobs/CHECKSUM.incomplete   those that have come so far
//   models--org--name/snapshots/COMMIT/PATH  ->  ../../blobs/CHECKSUM
//   .locks/models--org--name/CHECKSUM.lock        held by who fetches it
//
// So each finds what the other has fetched. Thread: any; writers of one blob take its lock.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "hub/listing.h"
#include "hub/lock_file.h"
#include "hub/repo_name.h"

namespace hub {

class RepoCache {
 public:
  // `folder`: the one that holds models--org--name and .locks. Touches nothing.
  RepoCache(std::string folder, const std::string& repo_id);

  const std::string& folder() const { return folder_; }
  std::string blob(const std::string& checksum) const;
  std::string part(const std::string& checksum) const;
  std::string snapshot(const std::string& commit) const;
  std::string file(const std::string& commit, const std::string& path) const;
  bool has_file(const std::string& commit, const std::string& path) const;

  // The commit that a revision was when it was fetched last; a commit is itself.
  std::optional<std::string> find_commit(const std::string& revision) const;

  // The files of a snapshot whose bytes are there.
  Listing list_snapshot(const std::string& commit) const;

  // What follows writes. Errors: kIo, naming the path; lock() also kCancelled.
  base::Result<void> make_folders() const;
  base::Result<LockFile> lock(const std::string& checksum,
                              const std::function<bool()>& cancelled) const;
  // Gives a blob its name in a snapshot.
  base::Result<void> link(const std::string& commit, const RepoFile& file) const;
  base::Result<void> write_ref(const std::string& revision, const std::string& commit) const;

  // Bytes that a user may still write where blobs are. REQUIRES: make_folders() did.
  base::Result<int64_t> free_bytes() const;

 private:
  std::string folder_, repo_folder_, locks_folder_;
};

}  // namespace hub
