// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace pig {

/// How much of this process lies in memory (VmRSS of /proc/self/status), and the most that ever did
/// (VmHWM). The kernel may count up to some hundred kilobytes late.
struct ProcessMemory {
  int64_t resident_bytes;
  int64_t peak_bytes;
};

/// Nothing where the kernel does not say. Takes tens of microseconds.
std::optional<ProcessMemory> read_process_memory() noexcept;

}  // namespace pig
