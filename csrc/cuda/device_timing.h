// SPDX-License-Identifier: Apache-2.0
//
// Device timing of this process: whether it is on, which devices there are, what it may cost.
//
// It is attached once PyTorch has initialised CUDA, which is when the driver is first touched, and
// stays so. A recording starts and stops it. Device contexts are those that PyTorch made: what is
// current on a recording thread, if it is its device's primary context. In a forked child it is off
// for good: CUDA does not work there.
//
// Any call of the driver may block, for as long as a stream hangs: an enqueue on a full stream, and
// then what needs the same lock in the driver. So no thread of the program ever waits for one that
// is inside the driver. Recording threads hold none of our locks there. The harvester is the only
// one that asks for answers; it holds the device lock meanwhile, which others try to get for a
// second at most. With several devices each is asked by a thread of its own, for which the
// harvester waits for a moment only, and then goes on with the next.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/drops.h"
#include "cuda/driver.h"
#include "cuda/event_recorder.h"
#include "cuda/event_timeline.h"
#include "cuda/step_budget.h"

namespace pig::cuda {

/// What PyTorch is asked by recording threads. Each returns 0, or anything else for no answer.
struct TorchFunctions {
  /// The calling thread's current stream on a device.
  int (*current_stream)(int32_t device, void** stream) = nullptr;
  /// The calling thread's current device; null where this PyTorch can't tell.
  int (*current_device)(int32_t* device) = nullptr;
};

class DeviceTiming {
 public:
  struct Options {
    double budget = 0;              ///< share of the step time
    uint64_t share_ns = 0;          ///< how soon after another a boundary shares its event
    bool all_side_streams = false;  ///< also with CUDA_DEVICE_MAX_CONNECTIONS=1
    uint32_t graph_nodes = 0;       ///< the most marks in a captured graph; 0: none
  };
  /// What a harvest has found out.
  struct Findings {
    std::vector<EventTimeline::Time> times;
    std::vector<std::pair<Device, DeviceClock::Point>> points;
    bool correlating = false;  ///< a correlation that is due has not ended

    bool empty() const { return times.empty() && points.empty(); }
    void add(Findings&& more);
  };
  static constexpr uint32_t kMaxDevices = 64;
  static constexpr uint32_t kMaxForeign = 1024;

  static DeviceTiming& instance() { return *instance_; }

  // --- the recording ---

  /// PyTorch has initialised CUDA. Loads the driver, and makes the calling thread's device ready.
  /// Returns whether there is a driver. Without one, or a way to ask for the stream, there is a
  /// warning, and no further try in this recording. May block, so without the GIL and any lock.
  bool attach(const TorchFunctions& torch);
  bool attached() const { return driver_.load(std::memory_order_acquire) != nullptr; }
  /// Whether a recording wants device times and PyTorch may yet initialise CUDA.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed) && !attached() && !forked_; }

  /// False, and a warning, while the driver does not give the harvester of an earlier recording
  /// back.
  bool start(const Options& options, const Clock& clock, DropCounters& drops, void (*wake)());
  /// After `start`: makes the calling thread's device ready and has phases timed from now on. May
  /// block, like `attach`.
  void open_gate();
  /// The recording has ended, and its last harvest is done.
  void finish();

  // --- the program's steps; with the GIL ---

  /// No further events are recorded. What is outstanding can still be harvested.
  void stop();
  void step_begins();
  void step_ends();
  void step_is_dropped();
  /// Whether steps are timed on a device, as far as the budget allows.
  bool times_steps() const { return running_.load(std::memory_order_relaxed) && attached(); }

  // --- captures of graphs, by the thread that captures on its current stream ---

  /// Before one begins: gets what marks in it need. May block, so without the GIL and any lock.
  void prepare_capture();
  /// A capture, by the timeline of its device and its number.
  struct Capture {
    EventTimeline* timeline = nullptr;
    uint64_t number = 0;  ///< 0: there is none that could be marked
  };
  /// That of the calling thread's device, where a capture can be marked; or nullptr. Without the
  /// GIL, as it asks the driver.
  EventTimeline* marked_timeline();
  /// Until its end all phases are timed: a step or two decide about all replays. With the GIL.
  void capture_begins();
  void capture_ends();
  bool is_capturing() const { return is_capturing_.load(std::memory_order_relaxed); }
  uint32_t most_graph_nodes() const { return graph_nodes_.load(std::memory_order_relaxed); }

  // --- recording threads ---

  /// Changes where a recording begins or ends.
  uint32_t recording() const { return recording_.load(std::memory_order_relaxed); }
  const Driver& driver() const { return *driver_.load(std::memory_order_relaxed); }
  int current_stream(Device device, Stream* stream) const {
    return torch_.current_stream(device, reinterpret_cast<void**>(stream));
  }
  /// The timeline of the calling thread's context; nullptr for one that is not its device's primary
  /// context. May block where the context is new.
  EventTimeline* timeline_of(Context context) noexcept;
  /// That of a thread without a context: of its current device, if that has one yet.
  EventTimeline* timeline_of_no_context() noexcept;
  uint64_t share_ticks() const { return share_ticks_; }
  bool times(Stream stream) const { return all_side_streams_ || is_default(stream); }
  /// Whether it is a stream of the current context, whichever that is.
  static bool is_default(Stream stream) {
    return reinterpret_cast<uintptr_t>(stream) <= kLastDefaultStream;
  }
  DropCounters& drops() const { return *drops_; }
  /// What a boundary has cost, and whether an event was recorded at it.
  void count_cost(uint64_t ticks, bool recorded) {
    if (recorded) {
      records_.fetch_add(1, std::memory_order_relaxed);
      // What is far more than a record takes was the wait for room in a full queue: without the
      // record the host would have waited as long in its next launch.
      const uint64_t least = least_record_ticks_.load(std::memory_order_relaxed);
      if (ticks < least && ticks != 0)
        least_record_ticks_.store(ticks, std::memory_order_relaxed);
      else
        ticks = std::min(ticks, kMostOfLeast * least);
    }
    record_ticks_.fetch_add(ticks, std::memory_order_relaxed);
  }
  /// Whether a phase outside any step may be timed; and one is.
  bool may_outside() const { return outside_.load(std::memory_order_relaxed) > 0; }
  void count_outside() { outside_.fetch_sub(1, std::memory_order_relaxed); }
  void side_stream_skipped() { side_stream_skipped_.store(true, std::memory_order_relaxed); }

  // --- the harvester, without any lock: these may block ---

  /// Prepares devices that are new, and adds what became known. `final`: also the best that a
  /// correlation under way has.
  void harvest(Findings& findings, bool final);
  void correlate_soon();

  // --- any thread ---

  /// Whether `harvest` is at the driver.
  bool asking() const { return asking_.load(std::memory_order_relaxed); }
  /// Whether one of several devices has not answered yet.
  bool is_one_away() const;
  std::vector<EventTimeline*> timelines() const;
  /// On how many devices the process has a primary context, as its runtime makes one for each that
  /// it uses; 0 where the harvester hasn't asked.
  uint32_t devices_in_use() const { return devices_in_use_.load(std::memory_order_relaxed); }
  uint32_t every() const { return budget_.every(); }
  uint64_t records() const { return records_.load(std::memory_order_relaxed); }
  uint64_t record_ns() const;

  /// The harvester was not back from the driver when the recording ended.
  void warn_of_blocked_driver();
  /// What the user should be told, each once.
  std::vector<std::string> take_warnings();
  bool has_warnings() const;

  static void after_fork_in_child();
  /// For tests: as if PyTorch had not initialised CUDA. Not while something is recorded.
  static void detach() { instance_ = new DeviceTiming; }

 private:
  PIG_HOT static DeviceTiming* instance_;
  /// A record is taken to cost at most so many times what the quickest has.
  static constexpr uint64_t kMostOfLeast = 4;
  static constexpr uint64_t kNoRecordTicks = ~uint64_t{0} / kMostOfLeast;
  static constexpr uintptr_t kLastDefaultStream = 2;  // legacy and per-thread: 0, 1 and 2

  void time_side_streams() { all_side_streams_ = options_.all_side_streams || connections_ > 1; }
  EventTimeline* known_timeline(Context context) const;
  void set_gate(Gate timing);
  EventTimeline* current_timeline();
  void prepare_current();
  void prepare(EventTimeline& timeline);
  void ask(EventTimeline& timeline, Findings& findings, bool final);
  void harvest(EventTimeline& timeline, Findings& findings, bool final);
  void warn(std::string warning);
  void collect_warnings();
  void refill_outside();
  void count_devices();

  std::atomic<const Driver*> driver_{nullptr};
  TorchFunctions torch_;
  uint32_t connections_ = 0;  ///< hardware queues that the streams share; 0 until it is attached

  bool forked_ = false;
  std::atomic<bool> wanted_{false};
  std::atomic<bool> running_{false};
  std::atomic<uint32_t> recording_{0};
  Options options_;
  std::atomic<uint32_t> graph_nodes_{0};  ///< that of the options while it is on; any thread reads
  bool all_side_streams_ = true;
  uint64_t share_ticks_ = 0;
  const Clock* clock_ = nullptr;
  DropCounters* drops_ = nullptr;
  void (*wake_)() = nullptr;

  std::atomic<bool> is_capturing_{false};
  Gate gate_after_capture_ = Gate::kClosed;

  StepBudget budget_;
  uint64_t step_begin_ = 0;         ///< in ticks
  uint64_t step_record_ticks_ = 0;  ///< `record_ticks_` when the step began
  std::atomic<uint64_t> records_{0};
  std::atomic<uint64_t> record_ticks_{0};
  std::atomic<uint64_t> least_record_ticks_{kNoRecordTicks};
  std::atomic<int64_t> outside_{0};  ///< phases that may still be timed outside steps
  int64_t outside_at_ns_ = 0;
  std::atomic<uint32_t> devices_in_use_{0};
  int64_t devices_due_ns_ = 0;

  std::atomic<bool> asking_{false};
  std::timed_mutex device_mutex_;  ///< for the harvester's side of the timelines
  /// What the askers have found. One that is away writes its own, without the lock.
  std::map<EventTimeline*, Findings> found_;
  mutable std::mutex timelines_mutex_;
  std::vector<std::unique_ptr<EventTimeline>> timelines_;
  std::unordered_set<Context> foreign_;  ///< contexts that are not PyTorch's
  std::atomic<bool> side_stream_skipped_{false};
  bool side_stream_reported_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace pig::cuda
