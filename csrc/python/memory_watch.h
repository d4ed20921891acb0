// SPDX-License-Identifier: Apache-2.0
//
// Reads how much memory is in use at the borders of phases and of steps.
//
// What is read comes from a source: a function without arguments, which returns what
// `torch._C._cuda_memoryStats` does. Without one it is the memory of the process. A source in C
// runs no code of the program, so no signal of it is handled in between.
//
// Not every step is read, and one that is not costs a comparison: after a step whose readings took
// a time t, none is read for t / budget. The first few are read in any case, as it is there that
// peaks rise. The readings wait in a list of bounded length until they are taken.
//
// With a function that resets the allocator's peaks, each reading that finds a peak above what is
// allocated is followed by a reset, so the next one finds the peak since this one
// (python/allocator_peaks.h has what the program sees of that). What other threads allocate and
// free between the reading and the reset is in no peak. So the statistics are read once more: if
// their counts of allocations have not changed, there was no such thing; else it is said that what
// follows may have had any peak.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "hot/active_recording.h"
#include "python/allocator_peaks.h"

namespace pig {

struct MemoryReading {
  /// `kReset`: the program has reset the peaks.
  enum Kind : uint32_t { kStepBegin, kPhaseBegin, kPhaseEnd, kStepEnd, kReset };
  /// A peak that is not known.
  static constexpr int64_t kAny = INT64_MAX;

  uint32_t kind;
  uint32_t step;  ///< its serial number
  uint32_t path;
  uint32_t depth;
  /// In bytes; -1: not known.
  int64_t allocated = -1;
  int64_t allocated_peak = -1;
  int64_t reserved = -1;
  int64_t reserved_peak = -1;
  /// Where the counter of the allocated peak stands after the reading: lower if it was reset.
  int64_t allocated_peak_after = -1;
};

class MemoryWatch final : public BorderListener, public PeakResetListener {
 public:
  static MemoryWatch& instance();

  /// From the next step on. `take`: called after a step with readings, at most once a second,
  /// and sooner where many wait. `budget`: the share of all time that the readings
  /// may take. `reset`: resets the peaks of the device; None: they are left alone. With the GIL, as
  /// all of these.
  void start(const pybind11::object& source, const pybind11::object& take, double budget,
             const pybind11::object& reset, long device);
  /// Calling it again does nothing. The readings that wait can still be taken.
  void stop();
  /// What was read since the last call.
  std::vector<MemoryReading> readings();
  uint64_t lost() const { return lost_; }
  /// How many resets other threads' allocations fell into, or may have fallen into.
  uint64_t contended_resets() const { return contended_resets_; }

  void step_begins(uint32_t step) noexcept override;
  void step_ends() noexcept override;
  void step_is_dropped() noexcept override;
  void phase_begins(uint32_t path, uint32_t depth) noexcept override;
  void phase_ends(uint32_t path, uint32_t depth) noexcept override;
  void before_reset(long device) override;
  void after_reset(long device) override;

 private:
  struct Functions {
    pybind11::object source;  ///< null: the memory of the process
    pybind11::object take;    ///< null: nothing is read
    pybind11::object reset;   ///< null: peaks are left alone
  };
  Functions functions() const noexcept {
    const std::lock_guard lock(mutex_);
    return functions_;
  }

  /// Whether there was something to read.
  bool read(MemoryReading::Kind kind, uint32_t path, uint32_t depth) noexcept;

  bool fill(MemoryReading& reading, const Functions& functions) noexcept;
  bool fill_from_process(MemoryReading& reading) noexcept;
  /// Says what the peak stands at after a reset, by the statistics before it and those now.
  void note_reset(MemoryReading& reading, const pybind11::object& before,
                  const pybind11::object& source) noexcept;
  void add(const MemoryReading& reading) noexcept;

  /// Puts the next step that is read off, by what this one has cost.
  void pause() noexcept;

  Functions functions_;
  long device_ = -1;
  double budget_ = 0;
  uint32_t first_steps_ = 0;  ///< that are still to be read whatever it costs
  uint64_t due_ticks_ = 0;    ///< when a step may be read again
  mutable std::mutex mutex_;  ///< for the functions and the list, where threads run without a GIL
  std::vector<MemoryReading> readings_;
  size_t step_start_ = 0;  ///< where those of the open step begin
  uint64_t lost_ = 0;
  uint64_t contended_resets_ = 0;
  MemoryReading before_reset_{};        ///< by the program
  pybind11::object statistics_before_;  ///< of that; null: none goes on
  uint32_t step_ = 0;
  uint64_t cost_ticks_ = 0;  ///< of its readings
  uint64_t taken_ticks_ = 0;
  int64_t resident_peak_ = -1;  ///< of the process, as it was last read
  int64_t own_peak_ = 0;        ///< that without the log
  bool is_reading_ = false;
  bool is_read_ = false;  ///< the open step is one of those that are read
};

}  // namespace pig
