// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pig {

/// Why something was not recorded as asked: every cause is counted and stands in every report, by
/// its name. "history" is what was lost of it; device_... are spans without device times, and why.
#define PIG_DROPS(F)                                                                               \
  F(kRingFull, "ring_full") /* history: the ring was full, its owner folded the statistics */      \
  F(kSpanHistory, "span_history") /* history: made room (history_spans, max_bytes) */              \
  F(kStepHistory, "step_history") /* the same for steps */                                         \
  F(kDiskError, "disk_error")     /* history: the file could no longer be written */               \
  F(kDepth, "depth")              /* spans deeper than the stack */                                \
  F(kNames, "names") /* phases beyond the table of names; recorded under one common name */        \
  F(kLongNames, "long_names") /* phases whose name was cut to 256 characters */                    \
  F(kPaths, "paths")     /* spans beyond the table of paths; recorded under one common path */     \
  F(kThreads, "threads") /* threads beyond the table; recorded under the last entry */             \
  F(kUnmatchedEnds, "unmatched_ends") /* ends without a begin */                                   \
  F(kNestedSteps, "nested_steps")     /* opened inside an open step; recorded as phase "step" */   \
  F(kOpenAtThreadEnd, "open_at_thread_end") /* spans that a thread left open when it ended */      \
  F(kNoMemory, "no_memory") /* what there was no memory for: spans, steps, names, ... */           \
  F(kDeviceNoContext, "device_no_context")         /* no CUDA context, or not one of PyTorch's */  \
  F(kDevicePreparing, "device_preparing")          /* the events were not ready yet */             \
  F(kDeviceRingFull, "device_ring_full")           /* all events, or places to wait, in use */     \
  F(kDeviceCapturing, "device_capturing")          /* the stream was captured into a CUDA graph */ \
  F(kDeviceGraphNodes, "device_graph_nodes")       /* likewise, and it had its marks already */    \
  F(kDeviceGraphReplays, "device_graph_replays")   /* of phases in graphs: overwritten */          \
  F(kDeviceGraphUnclear, "device_graph_ambiguous") /* of which replay is not known */              \
  F(kDeviceSideStream, "device_side_stream")       /* CUDA_DEVICE_MAX_CONNECTIONS=1 */             \
  F(kDeviceStreamChanged, "device_stream_changed") /* began on another stream or thread */         \
  F(kDeviceBudget, "device_budget")         /* outside any step, and the budget was used up */     \
  F(kDeviceFailed, "device_failed")         /* a driver error had switched timing off */           \
  F(kDeviceUnfinished, "device_unfinished") /* not finished when the recording gave up */          \
  F(kDeviceHistory, "device_history")       /* history: they made room, or their span had */       \
  F(kMetrics, "metrics") /* values of metric readings beyond the bounds of their log */

enum class Drop : size_t {
#define PIG_CAUSE(cause, name) cause,
  PIG_DROPS(PIG_CAUSE)
#undef PIG_CAUSE
      kCount,
};

constexpr std::array<const char*, static_cast<size_t>(Drop::kCount)> kDropNames = {
#define PIG_NAME(cause, name) name,
    PIG_DROPS(PIG_NAME)
#undef PIG_NAME
};

class DropCounters {
 public:
  void add(Drop cause, uint64_t count = 1) {
    counts_[static_cast<size_t>(cause)].fetch_add(count, std::memory_order_relaxed);
  }
  uint64_t get(Drop cause) const {
    return counts_[static_cast<size_t>(cause)].load(std::memory_order_relaxed);
  }
  /// Of all causes.
  uint64_t total() const {
    uint64_t total = 0;
    for (const auto& count : counts_) total += count.load(std::memory_order_relaxed);
    return total;
  }
  void clear() {
    for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Drop::kCount)> counts_{};
};

}  // namespace pig
