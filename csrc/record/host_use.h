// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/recent_median.h"
#include "base/threads.h"
#include "cuda/step_budget.h"
#include "log/storage.h"
#include "record/cause_log.h"
#include "record/gil_waits.h"
#include "record/metric_series.h"
#include "record/part.h"
#include "record/thread_counts.h"

namespace pig {

/// What the thread of a step used of the machine in it, and what made it wait: how long it ran and
/// was ready to run, page faults, memory that had to be freed first, a CPU limit, and what the host
/// of a virtual machine took.
///
/// The thread reads its own counters where a step begins and ends, in as many steps as the budget
/// allows. A step that follows at once begins with the reading from the last one's end. At the end
/// of a long step they are read as well, within a budget of its own: what was counted since the
/// last reading was in this step, but for what the few steps in between had, which is taken to be
/// as much as others had. Nothing is known of the others, and of steps that end on another thread.
///
/// The time on the run queue becomes the reading `step/processor_wait_ns` of steps that were read.
/// All else goes to the log of causes for long steps, and as a sample for usual ones: long steps
/// are a biased sample, and readings become rare in a long run. A fault is taken to cost what one
/// on fresh memory cost as this began; up to `kMostFault` times as much where the kernel has
/// counted more system time in the step. What waits for a disk is known as time off the processors
/// alone, beyond what is usual. A thread that has not slept in a step, and neither ran nor was on
/// the run queue, had no processor: the host of the virtual machine did not let it run.
class HostUse final : public Part {
 public:
  /// The share of the time of steps that reading may take, and again reading long ones.
  static constexpr double kBudget = 0.0002;
  /// A step is long that takes so many times what the last ones took.
  static constexpr double kLong = 1.2;
  /// More threads than have steps. Each keeps its file open: to open it takes four times as long as
  /// to read.
  static constexpr size_t kMaxThreads = 16;
  /// Control groups, from the process's own one up.
  static constexpr size_t kMaxGroups = 8;

  HostUse(MetricSeries& series, CauseLog& causes) : series_(series), causes_(causes) {}

  void reset(const Session& session) override;
  /// From now on it is read for how long threads are on the run queue. `schedstat`: the file of the
  /// thread that opens it; `groups`: the `cpu.stat` of control groups. With the GIL.
  void watch_run_queue(std::string schedstat, const std::vector<std::string>& groups);
  /// From now on all else is read. Takes about a millisecond, to find out what a fault costs.
  /// `pressure`: a file with the stalls that memory has caused; empty: there is none. With the GIL.
  void watch_use(const std::string& pressure);
  void close() override;
  void abandon() override;

  // By the thread, with the GIL.
  void step_begins(uint32_t serial) noexcept;
  /// After the step has ended, and before its readings are written.
  void step_ends(uint32_t serial) noexcept;
  /// There was no such step.
  void step_is_dropped() noexcept;

  // By any thread.
  bool is_watching_use() const { return watches_use_.load(std::memory_order_acquire); }
  /// Whether a step that takes so much takes far longer than the last ones.
  bool is_long(int64_t duration_ns) const {
    const auto typical = static_cast<double>(budget_.typical_ns());
    return typical > 0 && static_cast<double>(duration_ns) > kLong * typical;
  }
  /// The open step, or none.
  StepAtWork open_step() const noexcept;
  /// When a step ended, if it was the last one.
  std::optional<int64_t> end_of(uint32_t serial) const noexcept;

 private:
  struct OfThread;
  struct File {
    HighDescriptor descriptor;
    bool is_taken = false;
  };

  /// Null where there is no memory for it.
  OfThread* this_thread() noexcept;
  /// What it has of its own, if the open step is this one.
  OfThread* of_open_step(uint32_t serial) const noexcept;
  ThreadCounts read(OfThread& own) noexcept;
  /// The open step begins, and is read.
  void begin(OfThread& own) noexcept;
  /// Whether reading a step that takes long is worth it.
  bool is_cheap(const OfThread& own, int64_t duration_ns) const noexcept;
  /// What is known to have been counted in the step that ends.
  std::optional<ThreadCounts> used(OfThread& own, bool is_long) noexcept;
  void note_queue(uint32_t serial, OfThread& own, const std::optional<ThreadCounts>& used,
                  bool is_long) noexcept;
  void note_use(uint32_t serial, const OfThread& own, const ThreadCounts& used,
                bool is_long) noexcept;
  void note_pressure(uint32_t serial, const OfThread& own, bool is_long) noexcept;
  /// For how long limits have stopped the control groups so far.
  std::optional<uint64_t> throttled_ns() noexcept;
  static void thread_ends(void* own);

  static thread_local OfThread* of_this_thread;  ///< null: none yet
  static const ThreadEnd thread_end;

  MetricSeries& series_;
  CauseLog& causes_;
  const Clock* clock_ = nullptr;
  std::atomic<bool> watches_queue_ = false;
  std::atomic<bool> watches_use_ = false;
  cuda::StepBudget budget_;
  // With the GIL.
  int64_t fault_ns_ = 0;
  uint32_t usual_ = 0;  ///< steps that were read
  HighDescriptor pressure_;
  int64_t pressed_ns_ = -1;  ///< the sum, when it was last read
  int64_t pressed_at_ns_ = 0;

  mutable SpinLock step_lock_;  ///< of what follows
  StepAtWork open_;
  uint32_t ended_ = kNoStep;
  int64_t ended_ns_ = 0;
  RecentMedian off_cpu_ns_;  ///< of usual steps

  SpinLock file_lock_;  ///< of what follows
  uint32_t recordings_ = 0;
  std::string schedstat_;
  std::array<File, kMaxThreads> files_;
  std::array<HighDescriptor, kMaxGroups> groups_;
  size_t group_count_ = 0;
  uint64_t throttled_before_ = 0;
};

}  // namespace pig
