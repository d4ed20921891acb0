// SPDX-License-Identifier: Apache-2.0
//
// Samples the main thread's Python stack, and asks for nothing that would make that thread wait.
//
// A thread of ours wakes 50 times a second at most, and less often where waking it costs more
// (record/stack_samples.h). While the main thread has given the GIL
// away, as it has in the operators of torch, ours takes it for the microseconds that it needs to
// walk the frames. While the main thread has the GIL, to want it would have the main thread give it
// away after the switch interval, and wait until the machine runs our thread and then itself again.
// So it is asked to walk its own frames instead, as pending call of the interpreter, which it makes
// where it would see that another thread wants the GIL. Between two such places no line of Python
// ends but by operators of C types: their time can be that of the line behind.
//
// All that is sampled is guarded by the GIL.
#include "python/stack_sampler.h"

#include <Python.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "base/throwing.h"
#include "base/ticks.h"
#include "hot/active_recording.h"
#include "python/eval_breaker.h"
#include "python/gil_release.h"
#include "python/opener.h"
#include "python/phase_type.h"
#include "python/python_error.h"
#include "record/parts.h"
#include "record/recording_thread.h"
#include "record/stack_samples.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;

/// The innermost ones of deeper stacks count.
constexpr size_t kMostFrames = 256;
constexpr size_t kMostPlaces = 16384;
/// Of a processor's time, our thread takes one part in so many at most: about a tenth of what the
/// usual samplers do.
constexpr int64_t kMostOwn = 400;
/// Sleeps no longer: the recording may have ended.
constexpr std::chrono::milliseconds kLongestSleep{100};

constexpr uint32_t kNoRoom = 0xFFFFFFFFu;
constexpr uint32_t kOwnCode = 0xFFFFFFFEu;

/// A line of a function. The reference keeps the address from being another function's.
struct Place {
  PyCodeObject* code;
  int line;
};

struct PlaceKey {
  const PyCodeObject* code;
  int at;  ///< an instruction, or minus a line
  bool operator==(const PlaceKey&) const = default;
};
struct PlaceHash {
  size_t operator()(const PlaceKey& key) const {
    return std::hash<const void*>()(key.code) * 31 + static_cast<size_t>(key.at) * 0x9E3779B1u;
  }
};

struct Sampler {
  std::atomic<uint32_t> recording{0};  ///< that is sampled; 0: none
  std::atomic<bool> is_wanted{false};  ///< a sample, of the main thread itself
  std::atomic<bool> is_asked{false};   ///< the interpreter has the call
  Alarm alarm;
  PyThreadState* main = nullptr;
  ThreadState* main_state = nullptr;  ///< null until it has recorded something
  std::string own_folder;
  StackSamples samples;
  std::atomic<int64_t> stopped_ns{0};       ///< by all samples
  std::atomic<int64_t> rested_until_ns{0};  ///< no sample was wanted
  std::vector<Place> places;
  std::unordered_map<PlaceKey, uint32_t, PlaceHash> numbers;
};
Sampler sampler;

int64_t now_ns() { return Recorder::instance().clock().to_ns(read_ticks()); }

/// Whether the main thread has the GIL. Without it, from any thread.
bool has_gil(PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030C0000
  return static_cast<volatile PyThreadState*>(thread)->_status.active != 0;
#else
  return _PyThreadState_UncheckedGet() == thread;
#endif
}

uint32_t find(const PlaceKey& key) {
  const auto found = sampler.numbers.find(key);
  return found != sampler.numbers.end() ? found->second : kNoRoom;
}

/// Throws std::bad_alloc.
uint32_t place_of(PyCodeObject* code, int instruction) {
  uint32_t number = find({code, instruction});
  if (number != kNoRoom) return number;
  if (sampler.numbers.size() >= 2 * kMostPlaces) return kNoRoom;
  int line = PyCode_Addr2Line(code, instruction);
  if (line < 0) line = std::max(code->co_firstlineno, 0);  // made by the compiler, for no line
  number = find({code, -line - 1});
  if (number == kNoRoom) {
    if (sampler.places.size() == kMostPlaces) return kNoRoom;
    const char* const file = PyUnicode_AsUTF8(code->co_filename);
    if (file == nullptr) PyErr_Clear();
    const bool is_own = file != nullptr && std::string_view(file).starts_with(sampler.own_folder);
    number = is_own ? kOwnCode : static_cast<uint32_t>(sampler.places.size());
    make_room(sampler.places, sampler.places.size() + 1);
    sampler.numbers.emplace(PlaceKey{code, -line - 1}, number);
    // Our own as well: its address is a key.
    sampler.places.push_back({code, line});
    Py_INCREF(code);
  }
  sampler.numbers.emplace(PlaceKey{code, instruction}, number);
  return number;
}

/// The frames of the main thread, the innermost first, without our own. False where there is no
/// room for one of them.
bool walk(std::array<uint32_t, kMostFrames>& places, size_t& count) {
  bool has_room = true;
  PyFrameObject* frame = PyThreadState_GetFrame(sampler.main);
  for (count = 0; frame != nullptr && has_room && count < places.size();) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    uint32_t place = kNoRoom;
    try_allocating([&] { place = place_of(code, instruction_of(frame)); });
    has_room = place != kNoRoom;
    if (has_room && place != kOwnCode) places[count++] = place;
    Py_DECREF(code);
    PyFrameObject* const outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  return has_room;
}

/// The innermost phase of the main thread; null until it has recorded something.
const Frame* innermost_frame() {
  const auto main_thread = static_cast<uint64_t>(getpid());
  if (sampler.main_state == nullptr)
    sampler.main_state = parts().spans.threads().find_native(main_thread);
  if (sampler.main_state == nullptr) return nullptr;
  return &sampler.main_state->innermost(reinterpret_cast<uintptr_t>(sampler.main->context));
}

/// Where a sample counts: its scope, and the innermost phase that has begun in it. As spans do,
/// which belong to the step that was open when they began.
std::pair<Scope, uint32_t> scope_and_path(const Frame* frame) {
  const uint64_t step = open_step.load(std::memory_order_relaxed);
  const auto serial = step == kNoOpenStep ? kNoStep : static_cast<uint32_t>(step);
  if (frame == nullptr) return {scope_of(serial, 0), kNoPath};  // the step is another thread's
  if (serial == kNoStep) return {Scope::kOutside, frame->path};
  const bool is_own = static_cast<uint32_t>(step >> 32) == sampler.main_state->serial();
  const Scope scope = parts().all_steps.is_profiled(serial)
                          ? Scope::kProfiledStep
                          : scope_of(serial, is_own ? kStepThread : 0);
  return {scope, frame->step == serial ? frame->path : kNoPath};
}

/// With the GIL, by whichever thread: the main one does nothing meanwhile but this.
void take_sample() {
  const int64_t begin_ns = now_ns();
  sampler.is_wanted.store(false);
  const Frame* const frame = innermost_frame();
  const ErrorAside aside;  // drops our own: there may be no memory for a frame object
#if PY_VERSION_HEX < 0x030C0000
  // A frame object may be the one that has the garbage collector run: here, and for long.
  const bool collects = PyGC_Disable() != 0;
#endif
  std::array<uint32_t, kMostFrames> places;
  size_t count = 0;
  if (!walk(places, count)) count = 0;
#if PY_VERSION_HEX < 0x030C0000
  if (collects) PyGC_Enable();
#endif
  if (!try_allocating([&] {
        const auto [scope, path] = scope_and_path(frame);
        sampler.samples.rest(sampler.rested_until_ns.load());
        sampler.samples.add(scope, path, std::span(places).first(count), begin_ns);
      }))
    count_drop(Drop::kNoMemory);
  sampler.stopped_ns.fetch_add(std::max<int64_t>(now_ns() - begin_ns, 0));
}

bool is_on(uint32_t recording) {
  return recording != 0 && sampler.recording.load() == recording &&
         active_epoch.load(std::memory_order_relaxed) == recording;
}

/// By the main thread, in its interpreter loop.
int answer(void*) {
  sampler.is_asked.store(false);
  if (is_on(sampler.recording.load()) && sampler.is_wanted.load()) take_sample();
  return 0;
}

/// By the sampler's thread, which has given the GIL away.
void look(uint32_t recording, void* own_thread) {
  if (has_gil(sampler.main)) {
    sampler.is_wanted.store(true);
    // It refuses when too many calls are pending already.
    if (!sampler.is_asked.exchange(true) && Py_AddPendingCall(answer, nullptr) != 0)
      sampler.is_asked.store(false);
    break_evaluation();
    return;
  }
  GilRelease::take_back(own_thread);
  if (is_on(recording)) take_sample();
  GilRelease::give_away();
}

/// With a state of Python's of its own, made once, as that takes memory.
void live(uint32_t recording) {
  if (Py_IsInitialized() == 0) return;
  with_gil([recording] {
    void* const own_thread = GilRelease::give_away();
    const int64_t began_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    SamplePace pace(now_ns(), kMostOwn);
    bool has_steps = false;
    while (is_on(recording)) {
      const uint32_t rings = sampler.alarm.rings();
      const int64_t stopped_ns = sampler.stopped_ns.load();
      if (!has_steps && open_step.load(std::memory_order_relaxed) != kNoOpenStep) {
        has_steps = true;
        pace.steps_begin(now_ns(), stopped_ns, read_clock_ns(CLOCK_THREAD_CPUTIME_ID) - began_ns);
      }
      const int64_t wait_ns = pace.due_ns(stopped_ns) - now_ns();
      if (wait_ns > 0) {
        sampler.alarm.sleep(rings, std::min<std::chrono::nanoseconds>(
                                       kLongestSleep, std::chrono::nanoseconds(wait_ns)));
        continue;
      }
      // What was asked for before counts up to its answer, so nothing is rested from it.
      if (!sampler.is_wanted.load())
        sampler.rested_until_ns.store(pace.rested_until_ns(stopped_ns));
      look(recording, own_thread);
      pace.looked(now_ns(), read_clock_ns(CLOCK_THREAD_CPUTIME_ID) - began_ns);
    }
    GilRelease::take_back(own_thread);
  });
}

/// Whether the interpreter makes pending calls in this thread. After a fork by another thread than
/// the main one, Python 3.13 and 3.14 would go on telling the old main thread of them, whose state
/// is freed. The interpreter's first thread state belongs to the thread that started it.
bool makes_pending_calls([[maybe_unused]] PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyThreadState_GetID(thread) == 1;
#else
  return true;
#endif
}

PyThreadState* state_of_thread(unsigned long ident) {
  PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Main());
  while (state != nullptr && state->thread_id != ident) state = PyThreadState_Next(state);
  return state;
}

void stop_stacks() {
  sampler.recording.store(0);
  sampler.is_wanted.store(false);
  sampler.alarm.ring();
  sampler.main_state = nullptr;
  sampler.samples.begin(0);
  sampler.numbers.clear();
  // The last reference to a function may run code of the program.
  for (const Place& place : std::exchange(sampler.places, {})) Py_DECREF(place.code);
}

bool start_stacks(unsigned long main_thread, std::string own_folder, bool by_itself) {
#ifdef Py_GIL_DISABLED
  return false;
#else
  const uint32_t recording = active_epoch.load(std::memory_order_relaxed);
  if (recording == 0) return false;
  stop_stacks();
  sampler.main = state_of_thread(main_thread);
  if (sampler.main == nullptr || !makes_pending_calls(sampler.main)) return false;
  sampler.own_folder = std::move(own_folder);
  sampler.samples.begin(now_ns());
  sampler.stopped_ns.store(0);
  sampler.rested_until_ns.store(0);
  sampler.recording.store(recording);
  if (!by_itself) return true;
  const SignalsBlocked blocked;
  try {
    std::thread thread(live, recording);
    pthread_setname_np(thread.native_handle(), "pig-stacks");
    thread.detach();
  } catch (const std::exception&) {  // no thread, or no memory for one
    stop_stacks();
    return false;
  }
  return true;
#endif
}

py::dict stacks() {
  py::list places, nodes;
  for (const Place& place : sampler.places)
    places.append(py::make_tuple(
        py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(place.code)), place.line));
  for (const StackSamples::Node& node : sampler.samples.nodes()) {
    const bool is_root = node.parent >= StackSamples::kScopes;
    const int64_t parent = is_root ? -1 - static_cast<int64_t>(node.parent - StackSamples::kScopes)
                                   : static_cast<int64_t>(node.parent);
    const int64_t place = is_root && node.place == kNoPath ? -1 : static_cast<int64_t>(node.place);
    nodes.append(py::make_tuple(parent, place, node.samples, node.time_ns));
  }
  const StackSamples& samples = sampler.samples;
  return py::dict("places"_a = places, "nodes"_a = nodes, "begin_ns"_a = samples.begin_ns(),
                  "until_ns"_a = samples.until_ns(), "stopped_ns"_a = sampler.stopped_ns.load(),
                  "lost_ns"_a = samples.lost_ns(), "rested_ns"_a = samples.rested_ns());
}

}  // namespace

void forget_stack_sampler_in_child() {
  sampler.recording.store(0);
  sampler.is_wanted.store(false);
  sampler.is_asked.store(false);
  sampler.main_state = nullptr;
}

void add_stack_functions(py::module_& module) {
  module.def("start_stacks", &start_stacks, "main_thread"_a, "own_folder"_a, "by_itself"_a = true);
  module.def("sample_stack", [] {
    if (is_on(sampler.recording.load())) take_sample();
  });
  module.def("stacks", &stacks);
  module.def("stop_stacks", &stop_stacks);
}

}  // namespace pig
