// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "base/recent_median.h"
#include "base/threads.h"
#include "cuda/step_budget.h"
#include "log/storage.h"
#include "record/cause_log.h"
#include "record/gil_waits.h"
#include "record/harvester.h"
#include "record/part.h"
#include "record/run_queue_waits.h"

namespace pig {

/// What the thread of a step used of the machine in it, and what made it wait: how long it ran,
/// page faults, memory that had to be freed first, the GIL, and what the host of a virtual machine
/// took.
///
/// Faults and CPU time are read where a step begins and ends, in so many steps that it takes at
/// most the budget. At the end of a long step they are read in any case: what was counted since the
/// last reading was in this step, but for what the few steps in between had, which is taken to be
/// as much as others had. They go to the log of causes for long steps, and as a sample for usual
/// ones. A fault is taken to cost what one on fresh memory cost as this began; up to `kMostFault`
/// times as much where the kernel has counted more system time in the step. What waits for a disk
/// is known as time off the processors alone, beyond what is usual. A thread that has not slept in
/// a step, and neither ran nor was on the run queue, had no processor: the host of the virtual
/// machine did not let it run.
///
/// A thread of its own looks at steps that take long: the kernel says in which system call a thread
/// waits, and those that wait for the GIL all sleep at the same address.
class HostUse final : public Part {
 public:
  /// The share of the time of steps that reading may take.
  static constexpr double kBudget = 0.0002;

  HostUse(const RunQueueWaits& run_queue, CauseLog& causes)
      : run_queue_(run_queue),
        causes_(causes),
        waits_(causes, [this](ThreadTimes& times) { read_times(times); }) {}

  void reset(const Session& session) override;
  /// From now on it is read. Takes about a millisecond, to find out what a fault costs. `pressure`:
  /// a file with the stalls that memory has caused; empty: there is none. With the GIL.
  void start(const std::string& pressure);
  /// From now on long steps are looked at, if it has started. `threads`: the folder of the
  /// process's threads in /proc; `gil_address`: where those sleep that wait for the GIL. With the
  /// GIL.
  void watch_gil(std::string threads, uint64_t gil_address);
  void close() override;
  void abandon() override;

  // By the thread, with the GIL.
  void step_begins(uint32_t serial) noexcept;
  void step_ends(uint32_t serial) noexcept;
  /// There was no such step.
  void step_is_dropped() noexcept;

 private:
  struct Counts;
  struct OfThread;

  OfThread* this_thread() noexcept;
  /// What is known to have been counted in the step that ends.
  std::optional<Counts> used(OfThread& own, bool is_long) const noexcept;

  /// Looks at the open step if it takes long. Returns when to come again.
  std::chrono::nanoseconds look();
  Seen see(uint32_t thread);
  void read_times(ThreadTimes& times) const;
  void live();
  void note(uint32_t serial, const Counts& used, int64_t begin_ns, int64_t end_ns,
            bool is_long) noexcept;
  void note_pressure(uint32_t serial, int64_t begin_ns, int64_t end_ns, bool is_long) noexcept;

  static thread_local OfThread* of_this_thread;  ///< null: none yet
  static const ThreadEnd thread_end;

  const RunQueueWaits& run_queue_;
  CauseLog& causes_;
  const Clock* clock_ = nullptr;
  std::atomic<bool> is_on_ = false;
  uint32_t recordings_ = 0;
  cuda::StepBudget budget_;
  int64_t fault_ns_ = 0;
  uint32_t usual_ = 0;  ///< steps that were read; with the GIL
  HighDescriptor pressure_;
  int64_t pressed_ns_ = -1;  ///< the sum, when it was last read
  int64_t pressed_at_ns_ = 0;

  SpinLock lock_;  ///< of what follows
  StepAtWork open_;
  uint32_t ended_ = kNoStep;
  int64_t ended_ns_ = 0;
  RecentMedian off_cpu_ns_;  ///< of usual steps

  // Of the thread that looks.
  pthread_t thread_{};
  bool has_thread_ = false;
  std::string threads_;
  uint64_t gil_address_ = 0;
  std::atomic<bool> stops_ = false;
  Alarm alarm_;
  GilWaits waits_;
  HighDescriptor file_;
  uint32_t file_of_ = 0;
};

}  // namespace pig
