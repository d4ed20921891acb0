// SPDX-License-Identifier: Apache-2.0
#include "python/memory_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/throwing.h"
#include "base/ticks.h"
#include "cuda/device_gate.h"
#include "hot/span.h"
#include "log/storage.h"
#include "python/python_error.h"
#include "python/python_hooks.h"
#include "record/parts.h"

namespace py = pybind11;

namespace pig {
namespace {

/// In one step. A step with more phases is read up to here.
constexpr size_t kMostInStep = 1024;
constexpr double kLongestPauseTicks = 1e18;
constexpr uint32_t kFirstSteps = 3;
/// That wait. A step with which there would be more is not read.
constexpr size_t kMostWaiting = 16384;

/// How much of this process lies in memory (VmRSS of /proc/self/status), and the most that ever did
/// (VmHWM). The kernel may count up to some hundred kilobytes late.
struct ProcessMemory {
  int64_t resident_bytes;
  int64_t peak_bytes;
};

/// Nothing where the kernel does not say. Takes tens of microseconds.
std::optional<ProcessMemory> read_process_memory() noexcept {
  // Opened anew each time: a program may close all descriptors that it has not opened itself.
  const int file = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  char status[4096];
  const ssize_t size = ::read(file, status, sizeof status - 1);
  ::close(file);
  if (size <= 0) return std::nullopt;
  status[size] = '\0';
  // A line such as "VmRSS:     1234 kB"; -1 where there is none.
  const auto bytes_of = [&status](const char* name) -> int64_t {
    const char* line = std::strstr(status, name);
    return line != nullptr ? std::strtoll(line + std::strlen(name), nullptr, 10) * 1024 : -1;
  };
  const ProcessMemory memory{bytes_of("\nVmRSS:"), bytes_of("\nVmHWM:")};
  if (memory.resident_bytes < 0 || memory.peak_bytes < 0) return std::nullopt;
  return memory;
}

/// stats[group]["all"][value]; -1 where there is none.
int64_t number_in(const py::object& statistics, const char* group, const char* value) {
  PyObject* stats = statistics.ptr();
  for (const char* key : {group, "all", value}) {
    if (stats == nullptr || !PyDict_Check(stats)) return -1;
    stats = PyDict_GetItemString(stats, key);
  }
  if (stats == nullptr || !PyLong_Check(stats)) return -1;
  const int64_t number = PyLong_AsLongLong(stats);
  if (number == -1) PyErr_Clear();
  return number;
}

/// Whether it is certain that nothing was allocated or freed between two statistics.
bool have_same_counts(const py::object& before, const py::object& after) {
  for (const char* group : {"allocation", "segment"}) {
    for (const char* count : {"allocated", "freed"}) {
      const int64_t number = number_in(before, group, count);
      if (number < 0 || number_in(after, group, count) != number) return false;
    }
  }
  return true;
}

/// What `function` returns; null, with no error set, where it raises.
py::object ask(const py::object& function) {
  auto result = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(function.ptr()));
  if (result) return result;
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) PyErr_SetInterrupt();
  PyErr_Clear();
  return result;
}

}  // namespace

MemoryWatch& MemoryWatch::instance() {
  static auto* watch = new MemoryWatch;  // leaked: threads may be in it until the process ends
  return *watch;
}

void MemoryWatch::start(const py::object& source, const py::object& take, double budget,
                        const py::object& reset, long device) {
  stop();
  {
    const std::lock_guard lock(mutex_);
    readings_.clear();
    step_start_ = 0;
  }
  lost_ = contended_resets_ = 0;
  device_ = device;
  taken_ticks_ = read_ticks();
  is_reading_ = is_read_ = false;
  resident_peak_ = -1;
  own_peak_ = 0;
  budget_ = budget;
  first_steps_ = kFirstSteps;
  due_ticks_ = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto given = [](const py::object& object) {
      return object.is_none() ? py::object() : object;
    };
    functions_ = {given(source), take, given(reset)};
  }
  border_listener.store(this);
}

void MemoryWatch::stop() {
  border_listener.store(nullptr);
  cuda::set_borders_heard(false);
  // Those of a step that is open say nothing yet.
  step_is_dropped();
  Functions ended;  // goes without the lock
  const std::lock_guard lock(mutex_);
  std::swap(ended, functions_);
}

std::vector<MemoryReading> MemoryWatch::readings() {
  const std::lock_guard lock(mutex_);
  if (step_start_ == 0) return {};
  std::vector<MemoryReading> taken(readings_.begin(),
                                   readings_.begin() + static_cast<ptrdiff_t>(step_start_));
  readings_.erase(readings_.begin(), readings_.begin() + static_cast<ptrdiff_t>(step_start_));
  step_start_ = 0;
  return taken;
}

void MemoryWatch::step_begins(uint32_t step) noexcept {
  if (parts().is_scratch()) return;
  is_read_ = first_steps_ > 0 || read_ticks() >= due_ticks_;
  if (PIG_LIKELY(!is_read_)) return;
  step_ = step;
  cost_ticks_ = 0;
  {
    const std::lock_guard lock(mutex_);
    step_start_ = readings_.size();
    if (step_start_ + kMostInStep + 1 > kMostWaiting) {
      is_read_ = false;
      ++lost_;
    }
  }
  if (!is_read_) return;
  is_read_ = read(MemoryReading::kStepBegin, kNoPath, 0);
  if (!is_read_) return pause();
  cuda::set_borders_heard(true);
}

void MemoryWatch::step_ends() noexcept {
  if (!std::exchange(is_read_, false) || parts().is_scratch()) return;
  cuda::set_borders_heard(false);
  read(MemoryReading::kStepEnd, kNoPath, 0);
  size_t waiting = 0;
  {
    const std::lock_guard lock(mutex_);
    waiting = step_start_ = readings_.size();
  }
  const double frequency_hz = Recorder::instance().clock().frequency_hz();
  const auto ns = [frequency_hz](uint64_t ticks) {
    return static_cast<uint64_t>(static_cast<double>(ticks) * 1e9 / frequency_hz);
  };
  pause();
  const uint64_t now = read_ticks();
  const bool is_due = ns(now - taken_ticks_) >= 1'000'000'000 || waiting > kMostWaiting / 2;
  if (waiting == 0 || !is_due) return;
  taken_ticks_ = now;
  const Functions functions = this->functions();
  if (!functions.take) return;
  const ErrorAside aside;
  call_unraisably(functions.take.ptr());
}

void MemoryWatch::step_is_dropped() noexcept {
  if (!std::exchange(is_read_, false)) return;
  cuda::set_borders_heard(false);
  const std::lock_guard lock(mutex_);
  readings_.resize(step_start_);
}

void MemoryWatch::pause() noexcept {
  const double ticks = static_cast<double>(cost_ticks_) / budget_;
  due_ticks_ = read_ticks() + static_cast<uint64_t>(std::min(ticks, kLongestPauseTicks));
  if (first_steps_ > 0) --first_steps_;
}

void MemoryWatch::phase_begins(uint32_t path, uint32_t depth) noexcept {
  read(MemoryReading::kPhaseBegin, path, depth);
}

void MemoryWatch::phase_ends(uint32_t path, uint32_t depth) noexcept {
  read(MemoryReading::kPhaseEnd, path, depth);
}

/// Without a log in memory, which grows with each span and is none of the program's.
bool MemoryWatch::fill_from_process(MemoryReading& reading) noexcept {
  const std::optional<ProcessMemory> memory = read_process_memory();
  if (!memory) return false;
  const int64_t log_bytes = MemoryStorage::held_bytes();
  reading.allocated = std::max<int64_t>(memory->resident_bytes - log_bytes, 0);
  // The peak has no reset, so what is made of it may not fall.
  if (memory->peak_bytes != std::exchange(resident_peak_, memory->peak_bytes))
    own_peak_ = std::max(own_peak_, memory->peak_bytes - log_bytes);
  reading.allocated_peak = std::max(own_peak_, reading.allocated);
  reading.allocated_peak_after = reading.allocated_peak;
  reading.reserved = reading.reserved_peak = -1;
  return true;
}

bool MemoryWatch::fill(MemoryReading& reading, const Functions& functions) noexcept {
  const auto& [source, take, reset] = functions;
  if (!source) return fill_from_process(reading);
  const ErrorAside aside;
  std::optional<OwnAllocatorCalls> own;
  if (reset) own.emplace();  // else peaks are what the program sees
  const py::object stats = ask(source);
  if (!stats) return false;
  reading.allocated = number_in(stats, "allocated_bytes", "current");
  reading.allocated_peak = number_in(stats, "allocated_bytes", "peak");
  reading.reserved = number_in(stats, "reserved_bytes", "current");
  reading.reserved_peak = number_in(stats, "reserved_bytes", "peak");
  reading.allocated_peak_after = reading.allocated_peak;
  const bool is_known = reading.allocated >= 0 && reading.allocated_peak >= 0;
  if (reset && is_known && reading.allocated_peak > reading.allocated &&
      reading.kind != MemoryReading::kReset &&
      AllocatorPeaks::instance().keep(device_, stats.ptr())) {
    ask(reset);
    note_reset(reading, stats, source);
  }
  if (reading.kind == MemoryReading::kReset && is_known) statistics_before_ = stats;
  return is_known;
}

void MemoryWatch::note_reset(MemoryReading& reading, const py::object& before,
                             const py::object& source) noexcept {
  const py::object after = ask(source);
  const int64_t peak = number_in(after, "allocated_bytes", "peak");
  const bool is_known = peak >= 0 && have_same_counts(before, after);
  if (!is_known) ++contended_resets_;
  reading.allocated_peak_after = is_known ? peak : MemoryReading::kAny;
}

void MemoryWatch::before_reset(long device) {
  if (!is_read_ || is_reading_ || device != device_ || statistics_before_) return;
  const Functions functions = this->functions();
  if (!functions.reset) return;
  before_reset_ = {MemoryReading::kReset, step_, kNoPath, 0};
  fill(before_reset_, functions);
}

void MemoryWatch::after_reset(long) {
  const py::object before = std::exchange(statistics_before_, {});
  const Functions functions = this->functions();
  if (!before || !functions.source || !is_read_) return;
  const ErrorAside aside;
  const OwnAllocatorCalls own;
  note_reset(before_reset_, before, functions.source);
  add(before_reset_);
}

void MemoryWatch::add(const MemoryReading& reading) noexcept {
  const std::lock_guard lock(mutex_);
  const bool fits = readings_.size() - step_start_ < kMostInStep;
  if (fits || reading.kind == MemoryReading::kStepEnd) {
    try_allocating([&] { readings_.push_back(reading); });
  }
  if (fits) return;
  if (reading.kind != MemoryReading::kStepEnd) ++lost_;
  cuda::set_borders_heard(false);
}

bool MemoryWatch::read(MemoryReading::Kind kind, uint32_t path, uint32_t depth) noexcept {
  // A destructor that runs within may use phases.
  if (is_reading_) return false;
  is_reading_ = true;
  const uint64_t begin = read_ticks();
  MemoryReading reading{kind, step_, path, depth};
  const Functions functions = this->functions();
  // Without a source it is the process that is read, unless another thread has ended it all.
  if (!functions.take) {
    is_reading_ = false;
    return false;
  }
  const bool is_known = fill(reading, functions);
  if (is_known) {
    add(reading);
  } else {
    ++lost_;
    cuda::set_borders_heard(false);
  }
  cost_ticks_ += read_ticks() - begin;
  is_reading_ = false;
  return is_known;
}

}  // namespace pig
