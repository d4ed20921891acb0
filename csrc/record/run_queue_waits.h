// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/threads.h"
#include "cuda/step_budget.h"
#include "log/storage.h"
#include "record/cause_log.h"
#include "record/metric_series.h"
#include "record/part.h"

namespace pig {

/// For how long the thread of a step was ready to run in it, and waited for a processor: the time
/// on the run queue, as the kernel counts it (schedstat). It becomes the reading
/// `step/processor_wait_ns`.
///
/// It is read where a step begins and ends, by its own thread, in as many steps as the budget
/// allows. A step that follows at once begins with the reading from the last one's end. At the end
/// of a long step it is read as well, within a budget of its own: what was waited since the last
/// reading was in this step, but for what the few steps in between waited, which is taken to be as
/// much as others did. Nothing is known of the others, of steps that end on another thread, and
/// where the file is not there or says nothing. Each thread keeps its file open: to open it takes
/// four times as long as to read.
///
/// At the end of a long step it is also read for how long a CPU limit had stopped the process's
/// control groups since that was last read: a step in which one did is a long one. Both of a long
/// step go to the log of causes, as they are a biased sample, and readings become rare in a long
/// run.
class RunQueueWaits final : public Part {
 public:
  /// The share of the time of steps that reading may take, and again reading long ones.
  static constexpr double kBudget = 0.0002;
  /// A step is long that takes so many times what the last ones took.
  static constexpr double kLong = 1.2;
  /// A step that begins so soon after the last one begins with what was read at its end.
  static constexpr int64_t kAtOnceNs = 10'000;
  /// The first readings take far longer than all others, and don't count.
  static constexpr uint32_t kColdSteps = 3;
  /// To update the budget takes as long as a very short step.
  static constexpr uint32_t kStepsPerUpdate = 16;
  /// More threads than have steps.
  static constexpr size_t kMaxThreads = 16;
  /// Control groups, from the process's own one up.
  static constexpr size_t kMaxGroups = 8;

  RunQueueWaits(MetricSeries& series, CauseLog& causes) : series_(series), causes_(causes) {}

  void reset(const Session& session) override;
  /// From now on it is read. `path`: the file of the thread that opens it; `groups`: the `cpu.stat`
  /// of control groups. With the GIL.
  void start(std::string path, const std::vector<std::string>& groups);
  void close() override;
  void abandon() override;

  // By the thread, with the GIL.
  void step_begins(uint32_t serial) noexcept;
  /// After the step has ended, and before its readings are written.
  void step_ends(uint32_t serial) noexcept;
  /// There was no such step.
  void step_is_dropped() noexcept;

  /// How long this thread waited in the step that it has ended last; nothing where that is not
  /// known.
  std::optional<int64_t> waited_ns() const noexcept;

  /// What the last steps took; 0 before the first.
  int64_t typical_ns() const { return static_cast<int64_t>(budget_.typical_ns()); }
  /// Whether a step that takes so much takes far longer.
  bool is_long(int64_t duration_ns) const {
    const auto typical = static_cast<double>(typical_ns());
    return typical > 0 && static_cast<double>(duration_ns) > kLong * typical;
  }

 private:
  struct File {
    HighDescriptor descriptor;
    bool is_taken = false;
  };
  struct OfThread;

  /// Null where there is no memory for it.
  OfThread* this_thread_of_it() noexcept;
  /// All that the thread has waited so far; nothing where that is not known.
  std::optional<uint64_t> read(OfThread& own) noexcept;
  void read_long_step(OfThread& own, uint32_t serial) noexcept;
  /// For how long limits have stopped the control groups so far.
  std::optional<uint64_t> throttled_ns() noexcept;
  static void thread_ends(void* own);

  static thread_local OfThread* of_this_thread;
  static const ThreadEnd thread_end;

  MetricSeries& series_;
  CauseLog& causes_;
  const Clock* clock_ = nullptr;
  std::atomic<bool> is_on_ = false;
  std::string path_;
  cuda::StepBudget budget_;
  SpinLock lock_;  ///< of the files
  uint32_t recordings_ = 0;
  std::array<File, kMaxThreads> files_;
  std::array<HighDescriptor, kMaxGroups> groups_;
  size_t group_count_ = 0;
  uint64_t throttled_before_ = 0;
};

}  // namespace pig
