// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/threads.h"
#include "cuda/step_budget.h"
#include "log/storage.h"
#include "record/metric_series.h"
#include "record/part.h"

namespace pig {

/// For how long the thread of a step was ready to run in it, and waited for a processor: the time
/// on the run queue, as the kernel counts it (schedstat). It becomes the reading
/// `step/processor_wait_ns`.
///
/// It is read where a step begins and ends, by its own thread, in as many steps as the budget
/// allows. A step that follows at once begins with the reading from the last one's end. Nothing is
/// known of the others, of steps that end on another thread, and where the file is not there or
/// says nothing. Each thread keeps its file open: to open it takes four times as long as to read.
class RunQueueWaits final : public Part {
 public:
  /// The share of the time of steps that reading may take.
  static constexpr double kBudget = 0.0005;
  /// More threads than have steps.
  static constexpr size_t kMaxThreads = 16;

  explicit RunQueueWaits(MetricSeries& series) : series_(series) {}

  void reset(const Session& session) override;
  /// From now on it is read. `path`: the file of the thread that opens it. With the GIL.
  void start(std::string path);
  void close() override;
  void abandon() override;

  // By the thread, with the GIL.
  void step_begins(uint32_t serial) noexcept;
  /// After the step has ended, and before its readings are written.
  void step_ends(uint32_t serial) noexcept;
  /// There was no such step.
  void step_is_dropped() noexcept;

 private:
  struct File {
    HighDescriptor descriptor;
    bool is_taken = false;
  };
  struct OfThread;

  OfThread& this_thread_of_it() noexcept;
  /// All that the thread has waited so far; nothing where that is not known.
  std::optional<uint64_t> read(OfThread& own) noexcept;
  static void thread_ends(void* own);

  static thread_local OfThread of_this_thread;
  static const ThreadEnd thread_end;

  MetricSeries& series_;
  const Clock* clock_ = nullptr;
  std::atomic<bool> is_on_ = false;
  std::string path_;
  cuda::StepBudget budget_;
  SpinLock lock_;  ///< of the files
  uint32_t recordings_ = 0;
  std::array<File, kMaxThreads> files_;
};

}  // namespace pig
