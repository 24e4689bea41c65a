#include "hub/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace hub {
namespace {

using base::Code;

constexpr std::chrono::milliseconds kLookAgain{100};

// Whoever had the lock may have removed the file: then it is no longer the one that others see.
bool is_at(int fd, const std::string& path) {
  struct stat held, named;
  return fstat(fd, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

}  // namespace

base::Result<LockFile> LockFile::take(const std::string& path,
                                      const std::function<bool()>& cancelled) {
  while (true) {
    LockFile lock(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0664));
    if (lock.fd_ < 0) {
      return base::error(Code::kIo, "cannot write the cache: {}: {}", path, strerror(errno));
    }
    while (flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EINTR && errno != EWOULDBLOCK) {
        return base::error(Code::kIo, "cannot lock {}: {}", path, strerror(errno));
      }
      if (cancelled && cancelled()) {
        return base::error(Code::kCancelled, "stopped while another process fetched");
      }
      std::this_thread::sleep_for(kLookAgain);
    }
    if (is_at(lock.fd_, path)) return lock;
  }
}

LockFile::~LockFile() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace hub
