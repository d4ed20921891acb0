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
  // Spans without device times.
  kDeviceNoContext,      ///< the thread had no CUDA context, or not one of PyTorch's
  kDevicePreparing,      ///< the events were not ready yet
  kDeviceRingFull,       ///< every event, or place to wait for one, was in use
  kDeviceCapturing,      ///< the stream was being captured into a CUDA graph
  kDeviceSideStream,     ///< a side stream, with CUDA_DEVICE_MAX_CONNECTIONS=1
  kDeviceStreamChanged,  ///< the span began on one stream, or thread, and ended on another
  kDeviceBudget,         ///< outside any step, and the budget was used up
  kDeviceFailed,         ///< a driver error had switched device timing off
  kDeviceUnfinished,     ///< the device had not finished when the recording gave up
  kDeviceHistory,        ///< history lost: device times made room, or their span had
  kMetrics,              ///< values of metric readings beyond the bounds of their log
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
    "no_memory",
    "device_no_context",
    "device_preparing",
    "device_ring_full",
    "device_capturing",
    "device_side_stream",
    "device_stream_changed",
    "device_budget",
    "device_failed",
    "device_unfinished",
    "device_history",
    "metrics"};

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
