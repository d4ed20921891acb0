// SPDX-License-Identifier: Apache-2.0
#include "cuda/event_timeline.h"

#include <mutex>
#include <optional>

namespace pig::cuda {

StreamUse* EventTimeline::stream_use(Stream handle, uint32_t thread) {
  // Each thread has a stream of its own behind this handle.
  const auto kPerThreadStream = reinterpret_cast<Stream>(2);
  const uint32_t owner = handle == kPerThreadStream ? thread : 0;
  const std::lock_guard lock(lock_);
  const uint32_t count = stream_count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i)
    if (streams_[i].handle == handle && streams_[i].thread == owner) return &streams_[i];
  if (count == kMaxStreams) return nullptr;
  StreamUse& added = streams_[count];
  added.handle = handle;
  added.thread = owner;
  added.index = count;
  stream_count_.store(count + 1, std::memory_order_release);
  return &added;
}

void EventTimeline::fail(const DriverError& error) {
  if (failing_.test_and_set()) return;
  if (error.result != kDeinitialized)
    failure_ = std::string(error.call) + " answered " + driver_.describe(error.result);
  state_.store(State::kFailed, std::memory_order_release);
}

void EventTimeline::prepare() {
  DriverError error = clock_.create();
  for (uint64_t i = 0; i < EventRing::kEvents && !error; ++i) {
    error = clock_.make_event(ring_.event(i));
  }
  if (error) {
    fail(error);
  } else {
    state_.store(State::kReady, std::memory_order_release);
  }
}

void EventTimeline::restart(const Clock& clock) {
  const std::lock_guard lock(lock_);
  ring_.release_all();
  collected_ = ring_.head();
  queues_.clear();
  // The threads' EventRecorders begin anew too.
  for (uint32_t i = 0; i < stream_count_.load(std::memory_order_relaxed); ++i) streams_[i].reset();
  stream_count_.store(0, std::memory_order_release);
  clock_.restart(clock);
}

void EventTimeline::harvest(bool busy, std::vector<Time>& times) {
  if (state() != State::kReady) return;
  for (const uint64_t head = ring_.head(); collected_ != head;) {
    if (!ring_.is_record(++collected_)) continue;
    const uint32_t stream = ring_.stream(collected_);
    if (stream >= queues_.size()) queues_.resize(stream + 1);
    queues_[stream].sequences.push_back(collected_);
  }
  DriverError error =
      clock_.tick(busy || outstanding(), clock_.correlation_due() && !any_capture());
  for (Queue& queue : queues_)
    if (!error && !queue.sequences.empty()) error = harvest_stream(queue, times);
  // What was not to be had now is asked for again at the next harvest.
  if (error && !is_passing(error.result)) fail(error);
}

bool EventTimeline::outstanding() const {
  for (const Queue& queue : queues_)
    if (!queue.sequences.empty()) return true;
  return collected_ != ring_.head();
}

DriverError EventTimeline::harvest_stream(Queue& queue, std::vector<Time>& times) {
  while (!queue.sequences.empty()) {
    const size_t asked = queue.not_ready ? *queue.not_ready / 2 : queue.sequences.size() - 1;
    const int result = driver_.EventQuery(ring_.event(queue.sequences[asked]));
    if (result == kCapturedEvent) {
      // A capture began between our question for one and the record: it never has a time, and must
      // not be asked for again.
      const auto lost = queue.sequences.begin() + static_cast<ptrdiff_t>(asked);
      settle(*lost, Time::kLost, times);
      queue.sequences.erase(lost);
      queue.not_ready.reset();
      continue;
    }
    if (result == kNotReady || is_capture_code(result)) {
      queue.not_ready = asked;
      return {};
    }
    if (result != kSuccess) return {"cuEventQuery", result};
    const size_t before = queue.sequences.size();
    if (const DriverError error = resolve(queue, asked + 1, times)) return error;
    const size_t resolved = before - queue.sequences.size();
    if (resolved <= asked) return {};  // there is no anchor yet
    if (queue.not_ready && *queue.not_ready >= resolved) {
      *queue.not_ready -= resolved;
    } else {
      queue.not_ready.reset();
    }
  }
  return {};
}

DriverError EventTimeline::resolve(Queue& queue, size_t count, std::vector<Time>& times) {
  for (; count > 0; --count) {
    const uint64_t first = queue.sequences.front();
    std::optional<int64_t> device_ns;
    const DriverError error = clock_.time_of(ring_.event(first), device_ns);
    // Without an anchor yet it waits for the next harvest.
    if (error || !device_ns) return error;
    settle(first, *device_ns, times);
    queue.sequences.pop_front();
  }
  return {};
}

void EventTimeline::settle(uint64_t sequence, int64_t device_ns, std::vector<Time>& times) {
  times.push_back({event_ref(number_, sequence), device_ns, ring_.stream(sequence)});
  ring_.release(sequence);
}

/// Asks only the streams that were found in a capture: of the others some may be destroyed by now.
bool EventTimeline::any_capture() {
  bool any = false;
  for (uint32_t i = 0; i < stream_count_.load(std::memory_order_acquire); ++i) {
    StreamUse& stream = streams_[i];
    if (!stream.capturing()) continue;
    CaptureStatus status = kNotCapturing;
    const int result = driver_.StreamIsCapturing(stream.handle, &status);
    stream.set_capturing(is_capture_code(result) ||
                         (result == kSuccess && status != kNotCapturing));
    any = any || stream.capturing();
  }
  return any;
}

}  // namespace pig::cuda
