// SPDX-License-Identifier: Apache-2.0
//
// The events of one device on its own clock: recorded on its streams, and when they were complete.
//
// Recording threads record events (`record`); the holder of the device lock finds out, stream by
// stream, which are complete, and when they were (`harvest`). A stream completes its events in
// order, so one answer about the newest covers all before it. Per stream and harvest at most one
// query says "not ready". The newest event is asked first; when it is not ready, the next harvests
// look for the first incomplete one by bisection: each goes on until an answer is "not ready".
// Where two threads record on one stream at the same time, the numbers may not be in the stream's
// order. Then the driver says "not ready" when an event is asked for its time, and that is asked
// again at the next harvest.
//
// A thread holds no lock while it records, because the driver may block. The first driver error
// that is not a matter of course switches the device off for good.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/threads.h"
#include "cuda/device_asker.h"
#include "cuda/device_clock.h"
#include "cuda/driver.h"
#include "cuda/event_ring.h"
#include "cuda/graph_stamps.h"

namespace pig::cuda {

/// A stream, as recording threads use it.
class StreamUse {
 public:
  /// A thread marks a place on the stream during a step.
  void use(uint32_t thread, uint32_t step) {
    const uint64_t now = static_cast<uint64_t>(step) << 32 | thread;
    const uint64_t last = last_use_.load(std::memory_order_relaxed);
    if (PIG_LIKELY(last == now)) return;
    if (last != kNever && static_cast<uint32_t>(last >> 32) == step)
      shared_step_.store(step, std::memory_order_relaxed);
    last_use_.store(now, std::memory_order_relaxed);
  }
  /// Whether two threads have used it in the step.
  bool shared_in(uint32_t step) const {
    return shared_step_.load(std::memory_order_relaxed) == (uint64_t{step});
  }
  /// A thread has found it in a capture, or (at 0) found that the capture is over.
  void set_capture_seen(uint64_t ticks) {
    if (PIG_UNLIKELY(capture_seen() != ticks))
      capture_seen_.store(ticks, std::memory_order_relaxed);
  }
  uint64_t capture_seen() const { return capture_seen_.load(std::memory_order_relaxed); }
  /// The driver does not take our events on it: it is of another context.
  void refuse() { is_refused_.store(true, std::memory_order_relaxed); }
  bool is_refused() const { return is_refused_.load(std::memory_order_relaxed); }
  /// It is another stream's from now on, or (at 0) none's.
  void assign(uint32_t number) {
    number_.store(number, std::memory_order_relaxed);
    is_refused_.store(false, std::memory_order_relaxed);
    set_capture_seen(0);
    last_use_.store(kNever, std::memory_order_relaxed);
    shared_step_.store(kNever, std::memory_order_relaxed);
  }

  /// Tells apart all streams that the timeline has found; never used again.
  uint32_t number() const { return number_.load(std::memory_order_relaxed); }

  Stream handle = nullptr;
  uint32_t thread = 0;  ///< of the per-thread default stream, which is another one in each thread

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};
  std::atomic<uint64_t> last_use_{kNever};  ///< step << 32 | thread
  std::atomic<uint64_t> shared_step_{kNever};
  std::atomic<uint64_t> capture_seen_{0};
  std::atomic<uint32_t> number_{0};
  std::atomic<bool> is_refused_{false};
};

class EventTimeline {
 public:
  /// A stream as a thread has found it. It outlives the recording in which it was found, for a
  /// thread that is inside the driver then.
  struct FoundStream {
    StreamUse* use = nullptr;  ///< null: the table is full
    Stream handle = nullptr;
    uint32_t number = 0;  ///< what the use had then

    /// Whether the use is not another stream's by now, or of a recording that is over.
    bool is_valid() const { return use != nullptr && use->number() == number; }
  };

  static constexpr uint32_t kMaxStreams = 256;
  enum class State : uint8_t { kPreparing, kReady, kFailed };

  /// `connections`: how many hardware queues the process's streams share.
  EventTimeline(const Driver& driver, Context context, Device device, uint8_t number,
                uint32_t connections)
      : driver_(driver),
        context_(context),
        device_(device),
        number_(number),
        connections_(connections),
        clock_(driver),
        stamps_(driver, device) {}

  State state() const { return state_.load(std::memory_order_acquire); }
  Context context() const { return context_; }
  Device device() const { return device_; }
  uint8_t number() const { return number_; }

  // --- recording threads ---

  FoundStream find_stream(Stream handle, uint32_t thread);

  /// An event for a record on the stream; 0 when none is available, or the recording is over.
  uint64_t claim(const FoundStream& stream) {
    lock_.lock();
    const uint64_t sequence =
        PIG_LIKELY(stream.use->number() == stream.number) ? ring_.claim(stream.number) : 0;
    lock_.unlock();
    return sequence;
  }
  /// Records it. May block.
  int record(uint64_t sequence, Stream stream) {
    const int result = driver_.EventRecord(ring_.event(sequence), stream);
    if (PIG_LIKELY(result == kSuccess)) {
      ring_.publish(sequence);
    } else {
      ring_.release(sequence);
    }
    return result;
  }

  /// Switches the device off. Only the first reason is kept.
  void fail(const DriverError& error);
  void fail(std::string reason);
  /// Whether the context is still the one that the events belong to. With a device that is reset
  /// they are gone, and the next context may have the same handle: then the device is off.
  bool has_its_context();

  /// Asks the device, where there are several.
  DeviceAsker asker;

  // --- the holder of the device lock, with the context current ---

  /// Creates all events and, unless streams share hardware queues, records each once. Milliseconds;
  /// once.
  void prepare(const Clock& clock);
  /// A recording begins: what the last one left is forgotten.
  void restart(const Clock& clock);

  struct Time {
    static constexpr int64_t kLost = -1;

    EventRef event;
    int64_t device_ns;  ///< or kLost: it was captured into a graph
    uint32_t stream;    ///< its number
    Stream handle;
  };
  /// Appends the times that became known.
  void harvest(std::vector<Time>& times);
  /// Why the device is off, once. Empty while it is not, and when the process is just ending.
  std::string take_failure() {
    return state() == State::kFailed ? std::exchange(failure_, {}) : std::string();
  }
  uint64_t head() const { return ring_.head(); }
  DeviceClock& clock() { return clock_; }
  GraphStamps& stamps() { return stamps_; }
  bool correlation_due() const { return clock_.correlation_due(shares_queues()); }

 private:
  /// What of one stream the harvester has not resolved.
  struct Queue {
    std::deque<uint64_t> sequences;
    std::optional<size_t> not_ready;  ///< the first that is known not to have been ready
  };

  uint32_t idle_place() const;
  void collect();
  /// Whether `sequence` needs to be looked at again: a thread is still recording it.
  bool collect(uint64_t sequence);
  DriverError harvest_stream(Queue& queue, std::vector<Time>& times);
  void finish(uint64_t sequence, int64_t device_ns, std::vector<Time>& times);
  DriverError resolve(Queue& queue, size_t count, std::vector<Time>& times);
  bool any_capture() const;
  /// Whether the clock's own stream may share a hardware queue with another one.
  bool shares_queues() const {
    return stream_count_.load(std::memory_order_acquire) + 1 > connections_;
  }

  const Driver& driver_;
  const Context context_;
  const Device device_;
  const uint8_t number_;
  uint32_t connections_;
  uint64_t context_id_ = 0;  ///< unlike the handle, never used again
  std::atomic<State> state_{State::kPreparing};
  std::atomic_flag failing_ = ATOMIC_FLAG_INIT;
  std::string failure_;

  SpinLock lock_;  // between recording threads
  uint32_t streams_found_ = 0;
  EventRing ring_;
  std::array<StreamUse, kMaxStreams> streams_;  ///< by number modulo kMaxStreams
  std::atomic<uint32_t> stream_count_{0};

  std::vector<Queue> queues_;  ///< likewise
  uint64_t collected_ = 0;     ///< records up to here stand in the queues, or in `claimed_`
  std::vector<uint64_t> claimed_;
  std::vector<uint64_t> forgotten_;  ///< that threads still record for a recording that is over
  uint64_t capture_expiry_ticks_ = 0;
  DeviceClock clock_;
  GraphStamps stamps_;
  const Clock* run_clock_ = nullptr;
};

}  // namespace pig::cuda
