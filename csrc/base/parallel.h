// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "base/threads.h"
#include "base/throwing.h"

namespace pig {

/// Calls `work(part)` for the numbers below `parts`, each once, on this thread and on others, up to
/// `max_threads` in all, which take no signals and know nothing of Python. Returns when all calls
/// have. `work` must not throw. To start a thread takes some 10 us, so a part should take longer.
template <typename Work>
void for_each_part(int64_t parts, int max_threads, Work work) {
  constexpr int64_t kMostThreads = 16;
  std::atomic<int64_t> next{0};
  const auto do_some = [&] {
    for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) work(part);
  };
  const auto count = std::min({int64_t{max_threads}, parts, kMostThreads});
  std::vector<std::thread> helpers;
  if (count > 1) {
    const SignalsBlocked blocked;
    // Where there is no memory, or no further thread, this one does more of it.
    try_allocating([&] {
      helpers.reserve(static_cast<size_t>(count - 1));
      try {
        while (static_cast<int64_t>(helpers.size()) < count - 1) helpers.emplace_back(do_some);
      } catch (const std::system_error&) {
      }
    });
  }
  do_some();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace pig
