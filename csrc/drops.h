// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pig {

/// Why something was not recorded as asked. Every cause is counted and stands in every report.
enum class Drop : size_t {
  kRingFull,     ///< history lost: the ring was full, its owner folded the statistics itself
  kSpanHistory,  ///< history lost: the oldest spans made room (history_spans, max_bytes)
  kStepHistory,  ///< the same for steps
  kDiskError,    ///< history lost: the file could no longer be written
  kDepth,        ///< spans deeper than the stack
  kNames,    ///< phases that found no room in the table of names; recorded under one common name
  kPaths,    ///< spans that found no room in the table of paths; recorded under one common path
  kThreads,  ///< threads beyond the table; recorded under the last entry
  kUnmatchedEnds,    ///< ends without a begin
  kNestedSteps,      ///< steps opened inside an open one; recorded as phase "step"
  kOpenAtThreadEnd,  ///< spans that a thread left open when it ended
  kNoMemory,         ///< spans of a thread for which no buffers could be had
  kCount,
};

constexpr std::array<const char*, static_cast<size_t>(Drop::kCount)> kDropNames = {
    "ring_full",
    "span_history",
    "step_history",
    "disk_error",
    "depth",
    "names",
    "paths",
    "threads",
    "unmatched_ends",
    "nested_steps",
    "open_at_thread_end",
    "no_memory"};

/// Counts by cause of the active recording.
class DropCounters {
 public:
  void add(Drop cause, uint64_t count = 1) {
    counts_[static_cast<size_t>(cause)].fetch_add(count, std::memory_order_relaxed);
  }
  uint64_t get(Drop cause) const {
    return counts_[static_cast<size_t>(cause)].load(std::memory_order_relaxed);
  }
  void clear() {
    for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Drop::kCount)> counts_{};
};

}  // namespace pig
