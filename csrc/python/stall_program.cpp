// SPDX-License-Identifier: Apache-2.0
#include "python/stall_program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <utility>

namespace pig {
namespace {

struct StallProgram {
  std::vector<std::string> command;
  std::vector<std::string> environment;
};

std::mutex stall_program_mutex;
StallProgram stall_program;

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> found;
  for (std::string& text : texts) found.push_back(text.data());
  found.push_back(nullptr);
  return found;
}

}  // namespace

void set_stall_program(std::vector<std::string> command, std::vector<std::string> environment) {
  const std::lock_guard lock(stall_program_mutex);
  stall_program = {std::move(command), std::move(environment)};
}

void run_stall_program() {
  StallProgram mine;
  {
    const std::lock_guard lock(stall_program_mutex);
    mine = stall_program;
  }
  if (mine.command.empty()) return;
  const std::vector<char*> command = pointers(mine.command);
  const std::vector<char*> environment = pointers(mine.environment);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  if (posix_spawn_file_actions_init(&files) != 0) return;
  if (posix_spawnattr_init(&attributes) == 0) {
    // Who reads the program's output would otherwise wait for this one, too.
    for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
      posix_spawn_file_actions_addopen(&files, file, "/dev/null", O_RDWR, 0);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    pid_t pid = 0;
    if (posix_spawn(&pid, command[0], &files, &attributes, command.data(), environment.data()) == 0)
      while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_destroy(&files);
}

}  // namespace pig
