// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace pig {

/// How much of this process lies in memory (VmRSS of /proc/self/status), and the most that ever did
/// (VmHWM). The kernel may count up to some hundred kilobytes late.
struct ProcessMemory {
  int64_t resident_bytes;
  int64_t peak_bytes;
};

/// Nothing where the kernel does not say. Takes tens of microseconds.
inline std::optional<ProcessMemory> read_process_memory() noexcept {
  // Opened anew each time: a program may close all descriptors that it has not opened itself.
  const int file = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  char status[4096];
  const ssize_t size = ::read(file, status, sizeof status - 1);
  ::close(file);
  if (size <= 0) return std::nullopt;
  status[size] = '\0';
  // A line such as "VmRSS:     1234 kB"; -1 where there is none.
  const auto bytes_of = [&status](const char* name) -> int64_t {
    const char* line = std::strstr(status, name);
    return line != nullptr ? std::strtoll(line + std::strlen(name), nullptr, 10) * 1024 : -1;
  };
  const ProcessMemory memory{bytes_of("\nVmRSS:"), bytes_of("\nVmHWM:")};
  if (memory.resident_bytes < 0 || memory.peak_bytes < 0) return std::nullopt;
  return memory;
}

}  // namespace pig
