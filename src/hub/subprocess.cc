#include "hub/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

extern char** environ;

namespace hub {
namespace {

constexpr size_t kLastWordsBytes = 4096;
constexpr int kTickMs = 500;

// Reads the child's output until it closes it, keeping the end, and ticks.
void drain_output(int fd, const std::function<void()>& tick, std::string* last_words) {
  std::array<char, 4096> chunk;
  while (true) {
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    const int count = poll(&ready, 1, kTickMs);
    if (tick) tick();
    if (count < 0 && errno != EINTR) return;
    if (count <= 0) continue;
    const ssize_t got = read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    last_words->append(chunk.data(), static_cast<size_t>(got));
    if (last_words->size() > kLastWordsBytes) {
      last_words->erase(0, last_words->size() - kLastWordsBytes);
    }
  }
}

}  // namespace

base::Result<ProcessOutcome> run_process(const std::vector<std::string>& arguments,
                                         const std::function<void()>& tick) {
  CHECK(!arguments.empty());
  std::array<int, 2> pipe_fds;
  if (pipe2(pipe_fds.data(), O_CLOEXEC) != 0) {
    return base::error(base::Code::kIo, "cannot make a pipe for {}: {}", arguments[0],
                       strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int failure = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_fds[1]);
  if (failure != 0) {
    close(pipe_fds[0]);
    return base::error(base::Code::kIo, "cannot run {}: {}", arguments[0], strerror(failure));
  }
  ProcessOutcome outcome;
  drain_output(pipe_fds[0], tick, &outcome.last_words);
  close(pipe_fds[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      return base::error(base::Code::kIo, "cannot wait for {}: {}", arguments[0], strerror(errno));
    }
  }
  outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

}  // namespace hub
