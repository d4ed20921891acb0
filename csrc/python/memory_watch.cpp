// SPDX-License-Identifier: Apache-2.0
//
// Reads how much memory is in use at the boundaries of phases and of steps.
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
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/throwing.h"
#include "base/ticks.h"
#include "cuda/device_gate.h"
#include "hot/active_recording.h"
#include "hot/frame.h"
#include "hot/module_stack.h"
#include "hot/phase_table.h"
#include "hot/span.h"
#include "hot/thread_state.h"
#include "log/storage.h"
#include "python/allocator_peaks.h"
#include "python/bindings.h"
#include "python/python_error.h"
#include "python/python_hooks.h"
#include "record/parts.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;

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

/// stats[key][key]...; -1 where there is none.
int64_t number_at(const py::object& statistics, std::initializer_list<const char*> keys) {
  PyObject* stats = statistics.ptr();
  for (const char* key : keys) {
    if (stats == nullptr || !PyDict_Check(stats)) return -1;
    stats = PyDict_GetItemString(stats, key);
  }
  if (stats == nullptr || !PyLong_Check(stats)) return -1;
  const int64_t number = PyLong_AsLongLong(stats);
  if (number == -1) PyErr_Clear();
  return number;
}

int64_t number_in(const py::object& statistics, const char* group, const char* value) {
  return number_at(statistics, {group, "all", value});
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
  /// How often the allocator had to give memory back to the driver to get some; -1: not known.
  int64_t retries = -1;
  /// What autograd numbers the next node of the thread; -1: not known.
  int64_t next_node = -1;
};

class MemoryWatch final : public BoundaryListener, public PeakResetListener {
 public:
  static MemoryWatch& instance();

  /// From the next step on. `take`: called after a step with readings, at most once a second,
  /// and sooner where many wait. `budget`: the share of all time that the readings
  /// may take. `reset`: resets the peaks of the device; None: they are left alone. `next_node`:
  /// what autograd numbers the next node; None: not known. With the GIL, as all of these.
  void start(const py::object& source, const py::object& take, double budget,
             const py::object& reset, long device, const py::object& next_node);
  /// Calling it again does nothing. The readings that wait can still be taken.
  void stop();
  /// What was read since the last call.
  std::vector<MemoryReading> readings();
  /// What was read of the open step so far, which can still be taken.
  std::vector<MemoryReading> open_step_readings() const;
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
    py::object source;     ///< null: the memory of the process
    py::object take;       ///< null: nothing is read
    py::object reset;      ///< null: peaks are left alone
    py::object next_node;  ///< null: not known
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
  void note_reset(MemoryReading& reading, const py::object& before,
                  const py::object& source) noexcept;
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
  MemoryReading before_reset_{};  ///< by the program
  py::object statistics_before_;  ///< of that; null: none goes on
  uint32_t step_ = 0;
  uint64_t cost_ticks_ = 0;  ///< of its readings
  uint64_t taken_ticks_ = 0;
  int64_t resident_peak_ = -1;  ///< of the process, as it was last read
  int64_t own_peak_ = 0;        ///< that without the log
  bool is_reading_ = false;
  bool is_read_ = false;  ///< the open step is one of those that are read
};

MemoryWatch& MemoryWatch::instance() {
  static auto* watch = new MemoryWatch;  // leaked: threads may be in it until the process ends
  return *watch;
}

void MemoryWatch::start(const py::object& source, const py::object& take, double budget,
                        const py::object& reset, long device, const py::object& next_node) {
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
    functions_ = {given(source), take, given(reset), given(next_node)};
  }
  boundary_listener.store(this);
}

void MemoryWatch::stop() {
  boundary_listener.store(nullptr);
  cuda::set_boundaries_heard(false);
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

std::vector<MemoryReading> MemoryWatch::open_step_readings() const {
  const std::lock_guard lock(mutex_);
  return {readings_.begin() + static_cast<ptrdiff_t>(step_start_), readings_.end()};
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
  cuda::set_boundaries_heard(true);
}

void MemoryWatch::step_ends() noexcept {
  if (!std::exchange(is_read_, false) || parts().is_scratch()) return;
  cuda::set_boundaries_heard(false);
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
  cuda::set_boundaries_heard(false);
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
  const auto& [source, take, reset, next_node] = functions;
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
  reading.retries = number_at(stats, {"num_alloc_retries"});
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
  cuda::set_boundaries_heard(false);
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
  if (functions.next_node) {
    const ErrorAside aside;
    reading.next_node = number_at(ask(functions.next_node), {});
  }
  if (is_known) {
    add(reading);
  } else {
    ++lost_;
    cuda::set_boundaries_heard(false);
  }
  cost_ticks_ += read_ticks() - begin;
  is_reading_ = false;
  return is_known;
}

py::list as_tuples(const std::vector<MemoryReading>& readings) {
  py::list tuples;
  for (const MemoryReading& each : readings)
    tuples.append(py::make_tuple(each.kind, each.step, each.path, each.depth, each.allocated,
                                 each.allocated_peak, each.reserved, each.reserved_peak,
                                 each.allocated_peak_after, each.retries, each.next_node));
  return tuples;
}

/// The module that the calling thread is in, or that its backward pass has reached; None for none.
py::object open_module(const ThreadState& thread, uint32_t epoch) {
  ModuleStack* const modules = thread.modules();
  if (modules == nullptr) return py::none();
  const WatchedModule* module = nullptr;
  if (modules->epoch == epoch) {
    uint64_t latest = 0;
    for (const OpenModules* open : {&modules->calls, &modules->position}) {
      if (open->empty() || (*open)[open->size() - 1].begin < latest) continue;
      latest = (*open)[open->size() - 1].begin;
      module = (*open)[open->size() - 1].module;
    }
  }
  if (module == nullptr) return py::none();
  const std::string name = PhaseTable::instance().name(module->forward);
  PyObject* text =
      PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "surrogatepass");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}

/// The innermost phase of the calling thread, or else of the one that opened the step, the step's
/// index, and the calling thread's module.
py::tuple open_place() {
  py::object module = py::none();
  int64_t path = -1, step = -1;
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch != 0) {
    const ThreadState* thread = this_thread;
    if (thread->epoch() == epoch) {
      if (thread->innermost_path() != kNoPath) path = thread->innermost_path();
      module = open_module(*thread, epoch);
    }
    const uint64_t open = open_step.load(std::memory_order_relaxed);
    if (open != kNoOpenStep) {
      step = parts().steps().index_of(static_cast<uint32_t>(open));
      const ThreadState* steps = parts().spans.threads().find(static_cast<uint32_t>(open >> 32));
      if (path < 0 && steps != nullptr) {
        std::vector<OpenFrame> frames;
        steps->copy_open(frames);
        if (!frames.empty()) path = frames.back().path;
      }
    }
  }
  return py::make_tuple(path, step, module);
}

}  // namespace

void add_memory_functions(py::module_& module) {
  module.def(
      "start_memory_watch",
      [](const py::object& source, const py::object& take, double budget, const py::object& reset,
         long device, const py::object& next_node) {
        MemoryWatch::instance().start(source, take, budget, reset, device, next_node);
      },
      "source"_a, "take"_a, py::kw_only(), "budget"_a, "reset"_a = py::none(), "device"_a = -1,
      "next_node"_a = py::none());
  module.def(
      "hook_allocator_peaks",
      [](const py::tuple& reads, const py::tuple& resets) {
        return AllocatorPeaks::instance().hook(reads.ptr(), resets.ptr(), MemoryWatch::instance());
      },
      "reads"_a, "resets"_a);
  module.def("stop_memory_watch", [] { MemoryWatch::instance().stop(); });
  module.def("take_memory_readings", [] { return as_tuples(MemoryWatch::instance().readings()); });
  module.def("open_step_memory_readings",
             [] { return as_tuples(MemoryWatch::instance().open_step_readings()); });
  module.def("lost_memory_readings", [] { return MemoryWatch::instance().lost(); });
  module.def("contended_peak_resets", [] { return MemoryWatch::instance().contended_resets(); });
  module.def("open_place", &open_place);
}

}  // namespace pig
