// SPDX-License-Identifier: Apache-2.0
//
// What one thread records with: a stack of open frames and a ring of finished spans.
//
// The owner thread alone writes the stack. It is LIFO in the common case. Interleaved generators
// and tasks close frames out of order: such a frame becomes a tombstone (`closed`) and goes when
// everything above it is gone, or when there are many. Slot 0 is a root that is always open, so
// that every frame has a parent to add its time to.
//
// Tasks that take turns on the thread share the stack. A frame's parent is the innermost open one
// of its own task, or else of the task inside which its own was resumed. Frames of other tasks are
// suspended, and none of its business.
//
// Recordings. `epoch_` is the number of the recording this stack belongs to. The hot path compares
// it with the number of the active one, and anything unusual (a new recording, a frame that another
// thread wants closed) sets it to 0, so that one comparison covers all of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/drops.h"
#include "base/ticks.h"
#include "cuda/event_recorder.h"
#include "hot/active_recording.h"
#include "hot/frame.h"
#include "hot/module_stack.h"
#include "hot/path_table.h"
#include "hot/span.h"
#include "hot/span_ring.h"

namespace pig {

class BoundaryListener;

/// What the interpreter says of the calling thread's tasks.
struct Tasks {
  uintptr_t (*current)();               ///< never 0
  uintptr_t (*around)(uintptr_t task);  ///< the one inside which it was resumed, or 0
};
extern Tasks tasks;

class alignas(64) ThreadState {
  SpanRing ring_;  // first, so that its address is the state's: an instruction less per use

 public:
  static constexpr uint32_t kMaxFrames = 1024;  // more than Python's own default recursion limit

  ThreadState() = default;  // holds no buffers: `reset` gets them
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  uint32_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  uint32_t serial() const { return serial_; }
  /// The path of the innermost open frame around the caller; kNoPath for none. By the owner.
  uint32_t innermost_path() const {
    const Frame* top = top_.load(std::memory_order_relaxed);
    return PIG_LIKELY(top == frames_.get()) ? kNoPath : innermost_of(tasks.current())->path;
  }

  /// The innermost open frame around a task; one without a path where there is none. With the GIL,
  /// in a recording of the state's.
  const Frame& innermost(uintptr_t task) const { return *innermost_of(task); }

  /// Opens a frame and returns its serial, or 0 when the stack is full.
  uint32_t begin(uint32_t phase, Caller caller) {
    Frame* top = top_.load(std::memory_order_relaxed);
    if (PIG_UNLIKELY(top->caller.task != caller.task || top == last_))
      return begin_elsewhere(phase, caller);
    return open(top, top, phase, caller);
  }

  /// Closes the frame of the phase that the same block has opened, or the innermost that a call of
  /// the same task has. False where none is open.
  bool end(uint32_t phase, Caller caller, uint64_t now) {
    Frame* top = top_.load(std::memory_order_relaxed);
    if (PIG_UNLIKELY(top->phase != phase || top->caller.block != caller.block ||
                     unopened_count_ != 0))
      return end_below(phase, caller, now);
    close(*top, now);
    return true;
  }

  /// After `end`: closes the innermost frame of the same task, as blocks and calls can be mixed; or
  /// else, for a call, the innermost that a call has opened. False where none is open.
  bool end_any(uint32_t phase, Caller caller, uint64_t now);

  /// Closes exactly the frame with this serial. Unknown ones are counted.
  void end_frame(uint32_t serial, uint64_t now) {
    if (Frame* frame = find_serial(serial)) close(*frame, now);
  }

  /// Takes the frame away and records nothing.
  void cancel_frame(uint32_t serial) {
    if (Frame* frame = find_serial(serial)) pop(*frame);
    count_change();
  }

  /// What the frame does has turned out to be another phase. Frames inside it keep their paths.
  void rename_frame(uint32_t serial, uint32_t phase) {
    Frame* frame = find_serial(serial);
    if (frame == nullptr) return;
    publish(frame->path, path_of(frames_[frame->parent].path, phase));
    publish(frame->phase, phase);
    count_change();
  }

  /// A frame could not be opened. If its end will come all the same, it must not close another.
  void skip_frame(uint32_t phase, Caller caller) noexcept;

  /// Asks the owner to close a frame at its next begin or end. For frames that end on a thread that
  /// did not begin them.
  void request_end(uint32_t serial, uint64_t now) noexcept;

  /// The serial of the open frame of the phase that the block has opened, or 0. By any thread.
  uint32_t find_open(uint32_t phase, uintptr_t block) const;

  // --- for the recorder ---

  /// What a thread needs of its recording.
  struct Context {
    PathTable* paths;
    DropCounters* drops;
    SpanOverflow* overflow;  ///< null: nobody reads this thread
    void (*wake_harvester)();
  };

  /// Throws std::bad_alloc.
  void get_buffers();
  /// Empties the state for a recording, and gets the buffers if it has none.
  void reset(const Context& context, uint32_t epoch, uint32_t serial);

  /// Runs what other threads have asked for and makes the fast path pass again. Returns whether the
  /// state belongs to `epoch`.
  bool catch_up(uint32_t epoch);

  /// Closes the frames that other threads have asked to close. By the owner, or when it is idle for
  /// good: its thread has ended, or the gate is closed.
  void run_requests();

  SpanRing& ring() { return ring_; }

  // --- modules, by the owner ---

  /// The path of a phase under another. Throws std::bad_alloc.
  uint32_t path_of(uint32_t parent, uint32_t phase) {
    const uint64_t key = static_cast<uint64_t>(parent) << 32 | phase;
    const PathCacheEntry& entry = path_cache_[(parent * 7 + phase) % kPathCache];
    if (PIG_LIKELY(entry.key == key)) return entry.path;
    return intern_path(parent, phase);
  }

  /// The event that stands for `now`, or 0 where this step is not timed, unless it `ends` a timed
  /// span. Nothing is timed outside steps.
  [[gnu::noinline]] cuda::EventRef module_boundary(uint64_t now, uint32_t step, bool ends) noexcept;

  /// Records what was open beside the frames. Of `events` both are there, or none.
  void record(RawSpan span, const SpanRing::Events& events) {
    if (events.begin != 0 && events.end != 0) {
      ring_.set_events(events);
      span.duration_flags |= kDeviceTimed;
    }
    ring_.push(span);
    ring_.make_room();
  }

  /// The modules that the thread is in. Made by the owner as it enters the first one, and kept.
  ModuleStack* modules() const { return modules_.load(std::memory_order_acquire); }
  /// Throws std::bad_alloc.
  ModuleStack& make_modules();

  std::atomic<bool> finished{false};  ///< the thread has ended

  /// The event that the owner may be about to note in a frame or a span.
  cuda::EventRef event_in_hand() const { return event_recorder_.in_hand(); }

  /// Another number whenever a frame was opened, renamed or closed: the depth of the stack in the
  /// low half, and what only grows in the high one, so that sums of several never agree by chance.
  uint64_t activity() const {
    const auto depth = static_cast<uint64_t>(top_.load(std::memory_order_acquire) - frames_.get());
    return ((ring_.pushed() + observe(next_frame_)) << 32) + depth;
  }

  /// Open frames, outermost first, as they stood at one moment. Taken while the owner works: frames
  /// that come and go meanwhile are left out.
  void copy_open(std::vector<OpenFrame>& out) const;

 private:
  struct PathCacheEntry {
    uint64_t key;
    uint32_t path;
  };
  static constexpr uint32_t kPathCache = 256;  // modules have a path each

  /// Above `top`. Throws std::bad_alloc.
  uint32_t open(const Frame* parent, Frame* top, uint32_t phase, Caller caller) {
    Frame& frame = top[1];
    const uint64_t step = open_step.load(std::memory_order_relaxed);
    const uint32_t serial = next_frame_;
    count_change();
    frame.child = 0;
    frame.caller.task = caller.task;
    frame.parent = static_cast<uint16_t>(parent - frames_.get());
    frame.flags = static_cast<uint32_t>(step >> 32) == serial_ ? kStepThread : 0;
    publish(frame.phase, phase);
    publish(frame.caller.block, caller.block);
    publish(frame.path, path_of(parent->path, phase));
    publish(frame.step, static_cast<uint32_t>(step));
    publish(frame.depth, static_cast<uint16_t>(parent->depth + 1));
    publish(frame.closed, false);
    publish(frame.event, 0);
    publish(frame.begin, read_ticks());
    publish(frame.serial, serial);
    top_.store(&frame, std::memory_order_release);
    // The reading comes first: what the driver's record costs lies within the span.
    if (PIG_UNLIKELY(cuda::device_gate.load(std::memory_order_relaxed) != cuda::Gate::kClosed))
      time_begin(frame);
    return serial;
  }

  /// For `activity`, where neither a frame was begun nor a span recorded.
  void count_change() { publish(next_frame_, next_frame_ == 0xFFFFFFFFu ? 1 : next_frame_ + 1); }

  void close(Frame& frame, uint64_t now) {
    if (PIG_UNLIKELY(frame.event != 0)) return close_timed(frame, now);
    finish(frame, now);
  }

  void finish(Frame& frame, uint64_t now) {
    // Clocks of two sockets may differ by some ticks.
    const uint64_t duration = PIG_LIKELY(now > frame.begin) ? now - frame.begin : 0;
    frames_[frame.parent].child += duration;
    ring_.push(RawSpan::pack(frame.begin, duration, frame.child, frame.step, frame.path,
                             frame.depth, frame.flags));
    pop(frame);
    ring_.make_room();
  }

  void pop(Frame& frame) {
    if (PIG_UNLIKELY(&frame != top_.load(std::memory_order_relaxed))) {
      publish(frame.closed, true);
      ++tombstones_;
      return;
    }
    Frame* top = &frame - 1;
    for (; PIG_UNLIKELY(top->closed); --top) --tombstones_;
    top_.store(top, std::memory_order_release);
  }

  [[gnu::noinline]] uint32_t begin_elsewhere(uint32_t phase, Caller caller);
  [[gnu::noinline]] bool end_below(uint32_t phase, Caller caller, uint64_t now);
  template <typename Fits>
  bool end_innermost(uint32_t phase, uint64_t now, Fits fits);
  /// The innermost open frame around a task, or the root.
  const Frame* innermost_of(uintptr_t task) const;
  /// The innermost open frame that fits, or nullptr.
  template <typename Fits>
  Frame* find(Fits fits) const;
  /// None is counted.
  Frame* find_serial(uint32_t serial);
  void bury();
  uint32_t intern_path(uint32_t parent, uint32_t phase);
  [[gnu::noinline]] void time_begin(Frame& frame) noexcept;
  void record_begin(Frame& frame, cuda::Gate gate) noexcept;
  BoundaryListener* listener_of(const Frame& frame);
  [[gnu::noinline]] void close_timed(Frame& frame, uint64_t now);

  // The owner's cache lines.
  std::atomic<uint32_t> epoch_{0};
  uint32_t serial_ = 0;
  std::atomic<Frame*> top_{nullptr};
  Frame* last_ = nullptr;  ///< no frame fits above it
  std::unique_ptr<Frame[]> frames_;
  uint32_t next_frame_ = 1;
  uint32_t unopened_count_ = 0;
  PathCacheEntry path_cache_[kPathCache];
  cuda::EventRecorder event_recorder_;
  std::atomic<ModuleStack*> modules_{nullptr};
  Context context_{};
  uint32_t recording_ = 0;
  uint32_t tombstones_ = 0;
  mutable std::mutex moving_mutex_;  ///< held by whoever moves frames, or looks from outside

  /// A frame that could not be opened, between those with lower serials and the others.
  struct Unopened {
    uint32_t phase;
    uint32_t serial;
    Caller caller;
  };
  std::vector<Unopened> unopened_;  ///< the first of them, so many as the stack has frames

  struct EndRequest {
    uint32_t serial;
    uint64_t now;
  };
  std::mutex requests_mutex_;
  std::vector<EndRequest> requests_;
};

/// The calling thread's state; never null, but without buffers until it first records.
extern thread_local ThreadState* this_thread;

/// In a forked child: the state may be locked by a thread that does not exist here.
void forget_this_thread();

/// Serials fit a token's 16 bits; later threads share the last one.
constexpr uint32_t kMaxThreads = 65536;

}  // namespace pig
