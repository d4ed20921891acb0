// SPDX-License-Identifier: Apache-2.0
#include "base/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace pig {
namespace {

/// The value of a line such as "VmRSS:     1234 kB"; -1 where there is none.
int64_t bytes_of(const char* status, const char* name) noexcept {
  const char* line = std::strstr(status, name);
  return line != nullptr ? std::strtoll(line + std::strlen(name), nullptr, 10) * 1024 : -1;
}

}  // namespace

std::optional<ProcessMemory> read_process_memory() noexcept {
  // Opened anew each time: a program may close all descriptors that it has not opened itself.
  const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  char status[4096];
  const ssize_t size = read(file, status, sizeof status - 1);
  close(file);
  if (size <= 0) return std::nullopt;
  status[size] = '\0';
  const ProcessMemory memory{bytes_of(status, "\nVmRSS:"), bytes_of(status, "\nVmHWM:")};
  if (memory.resident_bytes < 0 || memory.peak_bytes < 0) return std::nullopt;
  return memory;
}

}  // namespace pig
