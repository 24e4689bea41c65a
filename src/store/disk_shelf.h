// What other models left in the folder of the disk tier: set aside whole, taken up again when their
// model is served again, and given up when the tier wants the room.
//
//   DIR/owner             whose the tier's files in DIR are: a digest of an identity, in hex
//   DIR/aside-<owner>/    files of another one, as they were
//
// Without it, trying another model, another heads file or another instruction set on the same
// folder would cost all that is there. The files in DIR and those aside take no more than the
// tier's capacity together: who grows gives up the one that was set aside first. Nothing here is
// trusted: a folder that is not what its name says is found out when its index and records are
// read. Thread: the engine's; the folder is locked.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace store {

class DiskShelf {
 public:
  // Sees to it that the files in `path` are those of `identity`, or none.
  DiskShelf(const std::string& path, const std::string& identity, int64_t capacity_bytes);

  // The files in DIR take so much from now on: gives up what no longer fits beside them. O(1) when
  // all does. Files are deleted beside the caller.
  void make_room(int64_t own_bytes);
  // Gives up one, because the disk is full. False: there is none.
  bool give_up_one();
  int64_t num_aside() const { return static_cast<int64_t>(aside_.size()); }

 private:
  struct Aside {
    std::string path;
    int64_t bytes = 0;  // on the disk
  };
  void swap(const std::string& owner);
  void list();

  const std::string path_;
  const int64_t capacity_bytes_;
  std::vector<Aside> aside_;  // set aside last, first
  int64_t aside_bytes_ = 0;
  std::vector<std::jthread> deleting_;
};

}  // namespace store
