// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <optional>

#include "base/clock.h"
#include "log/storage.h"

namespace pig {

/// What the kernel has counted of a thread. Each grows as long as the thread lives.
struct ThreadCounts {
  int64_t ran_ns = 0;
  int64_t system_ns = 0;
  int64_t minor_faults = 0;
  int64_t major_faults = 0;
  int64_t sleeps = 0;
  std::optional<int64_t> queued_ns;  ///< ready to run, but without a processor

  /// Those of the calling thread. `schedstat`: its file of that name.
  static ThreadCounts read(HighDescriptor& schedstat) noexcept {
    // First the clock: it has the kernel count what the thread has run up to now.
    const int64_t ran_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    rusage use{};
    getrusage(RUSAGE_THREAD, &use);
    return {ran_ns,        in_ns(use.ru_stime), use.ru_minflt,
            use.ru_majflt, use.ru_nvcsw,        queued_ns_of(schedstat)};
  }

  ThreadCounts since(const ThreadCounts& before) const {
    std::optional<int64_t> queued;
    if (queued_ns && before.queued_ns && *queued_ns >= *before.queued_ns)
      queued = *queued_ns - *before.queued_ns;
    return {ran_ns - before.ran_ns,
            system_ns - before.system_ns,
            minor_faults - before.minor_faults,
            major_faults - before.major_faults,
            sleeps - before.sleeps,
            queued};
  }

 private:
  static int64_t in_ns(const timeval& time) {
    return (time.tv_sec * 1'000'000 + time.tv_usec) * 1000;
  }

  static std::optional<int64_t> queued_ns_of(HighDescriptor& schedstat) noexcept {
    char text[96];
    char* end = schedstat.read(text);
    const int64_t ran_ns = std::strtoll(text, &end, 10);
    const char* const second = end;
    const int64_t queued_ns = std::strtoll(second, &end, 10);
    // A kernel that doesn't count says that the thread has never run.
    if (ran_ns == 0 || end == second) return std::nullopt;
    return queued_ns;
  }
};

}  // namespace pig
