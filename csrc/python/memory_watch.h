// SPDX-License-Identifier: Apache-2.0
//
// Reads how much memory is in use at the borders of phases and of steps.
//
// What is read comes from a source: a function without arguments, which returns what
// `torch._C._cuda_memoryStats` does, or a tuple of four numbers. Without one it is the memory of
// the process. A source in C runs no code of the program, so no signal of it is handled in between.
//
// Not every step is read, and one that is not costs a comparison: after a step whose readings took
// a time t, none is read for t / budget. The first few are read in any case, as it is there that
// peaks rise. The readings wait in a list of bounded length until they are taken.
#pragma once

#include <Python.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "hot/border_listener.h"

namespace pig {

struct MemoryReading {
  enum Kind : uint32_t { kStepBegin, kPhaseBegin, kPhaseEnd, kStepEnd };

  uint32_t kind;
  uint32_t step;  ///< its serial number
  uint32_t path;
  uint32_t depth;
  /// In bytes; -1: not known.
  int64_t allocated;
  int64_t allocated_peak;
  int64_t reserved;
  int64_t reserved_peak;
};

class MemoryWatch final : public BorderListener {
 public:
  static MemoryWatch& instance();

  /// From the next step on. `take`: called after a step with readings, at most once a second,
  /// and sooner where many wait. `budget`: the share of all time that the readings
  /// may take. With the GIL, as all of these.
  void start(PyObject* source, PyObject* take, double budget);
  /// Again: nothing. The readings that wait can still be taken.
  void stop();
  /// What was read since the last call.
  std::vector<MemoryReading> readings();
  uint64_t lost() const { return lost_; }

  void step_begins(uint32_t step) noexcept override;
  void step_ends() noexcept override;
  void step_is_dropped() noexcept override;
  void phase_begins(uint32_t path, uint32_t depth) noexcept override;
  void phase_ends(uint32_t path, uint32_t depth) noexcept override;

 private:
  /// Whether there was something to read.
  bool read(MemoryReading::Kind kind, uint32_t path, uint32_t depth) noexcept;

  bool fill(MemoryReading& reading, PyObject* source) noexcept;
  bool fill_from_process(MemoryReading& reading) noexcept;

  /// Puts the next step that is read off, by what this one has cost.
  void pause() noexcept;

  PyObject* source_ = nullptr;  ///< null: the memory of the process
  PyObject* take_ = nullptr;
  double budget_ = 0;
  uint32_t first_steps_ = 0;  ///< that are still to be read whatever it costs
  uint64_t due_ticks_ = 0;    ///< when a step may be read again
  std::mutex mutex_;  ///< for these two objects and the list, where threads run without a GIL
  std::vector<MemoryReading> readings_;
  size_t step_start_ = 0;  ///< where those of the open step begin
  uint64_t lost_ = 0;
  uint32_t step_ = 0;
  uint64_t cost_ticks_ = 0;  ///< of its readings
  uint64_t taken_ticks_ = 0;
  int64_t resident_peak_ = -1;  ///< of the process, as it was last read
  int64_t own_peak_ = 0;        ///< that without the log
  bool is_reading_ = false;
  bool is_read_ = false;  ///< the open step is one of those that are read
};

}  // namespace pig
