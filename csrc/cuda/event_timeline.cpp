// SPDX-License-Identifier: Apache-2.0
#include "cuda/event_timeline.h"

#include <algorithm>
#include <mutex>
#include <optional>

namespace pig::cuda {
namespace {

constexpr double kCaptureExpiryS = 1;
constexpr int kMpsEnabled = 133;  // CU_DEVICE_ATTRIBUTE_MPS_ENABLED

}  // namespace

EventTimeline::FoundStream EventTimeline::find_stream(Stream handle, uint32_t thread) {
  const uint32_t owner = is_per_thread(handle) ? thread : 0;
  const std::lock_guard lock(lock_);
  const uint32_t count = stream_count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i)
    if (streams_[i].handle == handle && streams_[i].thread == owner)
      return {&streams_[i], handle, streams_[i].number()};
  const uint32_t place = count < kMaxStreams ? count : idle_place();
  if (place == kMaxStreams) return {};
  StreamUse& added = streams_[place];
  added.handle = handle;
  added.thread = owner;
  added.assign(++streams_found_ * kMaxStreams + place);
  stream_count_.store(std::max(count, place + 1), std::memory_order_release);
  return {&added, handle, added.number()};
}

/// That of the stream that was used the longest ago, of those whose events all have their times and
/// that were not captured: it may have been destroyed. kMaxStreams where there is none.
uint32_t EventTimeline::idle_place() const {
  constexpr uint64_t kBusy = ~uint64_t{0};
  std::array<uint64_t, kMaxStreams> newest{};
  ring_.for_each([&](uint32_t stream, uint64_t sequence, bool is_in_use) {
    uint64_t& of_stream = newest[stream % kMaxStreams];
    if (is_in_use || streams_[stream % kMaxStreams].number() == stream)
      of_stream = std::max(of_stream, is_in_use ? kBusy : sequence);
  });
  for (uint32_t i = 0; i < kMaxStreams; ++i)
    if (streams_[i].capture_seen() != 0) newest[i] = kBusy;
  const auto oldest = std::min_element(newest.begin(), newest.end());
  return *oldest == kBusy ? kMaxStreams : static_cast<uint32_t>(oldest - newest.begin());
}

void EventTimeline::fail(const DriverError& error) {
  fail(error.result == kDeinitialized
           ? std::string()
           : std::string(error.call) + " answered " + driver_.describe(error.result));
}

void EventTimeline::fail(std::string reason) {
  if (failing_.test_and_set()) return;
  failure_ = std::move(reason);
  state_.store(State::kFailed, std::memory_order_release);
}

bool EventTimeline::has_its_context() {
  uint64_t id = 0;
  if (const int result = driver_.CtxGetId(context_, &id)) {
    fail(DriverError{"cuCtxGetId", result});
  } else if (id != context_id_) {
    fail("the device was reset");
  } else {
    return true;
  }
  return false;
}

void EventTimeline::prepare(const Clock& clock) {
  // How many queues of its server a client of MPS has got is not to be learnt.
  int has_mps = 0;
  if (driver_.DeviceGetAttribute != nullptr &&
      driver_.DeviceGetAttribute(&has_mps, kMpsEnabled, device_) == kSuccess && has_mps != 0)
    connections_ = 1;
  // The program has one stream at least.
  const bool record = connections_ > 1;
  DriverError error{"cuCtxGetId", driver_.CtxGetId(context_, &context_id_)};
  if (!error) error = clock_.create(record);
  for (uint64_t i = 0; i < EventRing::kEvents && !error; ++i)
    error = clock_.make_event(ring_.event(i), record);
  if (error) {
    fail(error);
  } else {
    restart(clock);
    state_.store(State::kReady, std::memory_order_release);
  }
}

void EventTimeline::restart(const Clock& clock) {
  const std::lock_guard lock(lock_);
  forgotten_ = ring_.release_all();
  collected_ = ring_.head();
  claimed_.clear();
  queues_.clear();
  // The threads' EventRecorders begin anew too.
  for (StreamUse& stream : streams_) stream.assign(0);
  stream_count_.store(0, std::memory_order_release);
  capture_expiry_ticks_ = static_cast<uint64_t>(kCaptureExpiryS * clock.frequency_hz());
  clock_.restart(clock);
  stamps_.restart();
  run_clock_ = &clock;
}

void EventTimeline::harvest(std::vector<Time>& times) {
  if (state() != State::kReady) return;
  collect();
  DriverError error = clock_.tick(shares_queues(), !any_capture());
  for (Queue& queue : queues_) {
    // What was not available now is asked for again at the next harvest.
    if (error && !is_passing(error.result)) return fail(error);
    error = queue.sequences.empty() ? DriverError{} : harvest_stream(queue, times);
  }
  if (error && !is_passing(error.result)) return fail(error);
  error = stamps_.compare(clock_, run_clock_->to_ns(read_ticks()), shares_queues());
  if (error && !is_passing(error.result))
    stamps_.fail(std::string(error.call) + " answered " + driver_.describe(error.result));
}

void EventTimeline::collect() {
  std::erase_if(forgotten_, [this](uint64_t sequence) {
    const EventRing::State state = ring_.state(sequence);
    if (state == EventRing::State::kRecorded) ring_.release(sequence);
    return state != EventRing::State::kClaimed;
  });
  std::erase_if(claimed_, [this](uint64_t sequence) { return !collect(sequence); });
  for (const uint64_t head = ring_.head(); collected_ != head;)
    if (collect(++collected_)) claimed_.push_back(collected_);
}

bool EventTimeline::collect(uint64_t sequence) {
  const EventRing::State state = ring_.state(sequence);
  if (state == EventRing::State::kRecorded) {
    const uint32_t place = ring_.stream(sequence) % kMaxStreams;
    if (place >= queues_.size()) queues_.resize(place + 1);
    queues_[place].sequences.push_back(sequence);
  }
  return state == EventRing::State::kClaimed;
}

DriverError EventTimeline::harvest_stream(Queue& queue, std::vector<Time>& times) {
  while (!queue.sequences.empty()) {
    const size_t asked = queue.not_ready ? *queue.not_ready / 2 : queue.sequences.size() - 1;
    const int result = driver_.EventQuery(ring_.event(queue.sequences[asked]));
    if (result == kCapturedEvent) {
      // A capture began between our question for one and the record: it never has a time, and must
      // not be asked for again.
      const auto lost = queue.sequences.begin() + static_cast<ptrdiff_t>(asked);
      finish(*lost, Time::kLost, times);
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
    clock_.adopt(ring_.event(first), *device_ns);
    finish(first, *device_ns, times);
    queue.sequences.pop_front();
  }
  return {};
}

void EventTimeline::finish(uint64_t sequence, int64_t device_ns, std::vector<Time>& times) {
  const uint32_t stream = ring_.stream(sequence);
  times.push_back(
      {event_ref(number_, sequence), device_ns, stream, streams_[stream % kMaxStreams].handle});
  ring_.release(sequence);
}

/// By what recording threads have seen, not by asking the driver: a stream may have been destroyed
/// since. Who saw a capture may never look again, so what was seen expires.
bool EventTimeline::any_capture() const {
  const uint64_t now = read_ticks();
  for (uint32_t i = 0; i < stream_count_.load(std::memory_order_acquire); ++i) {
    const uint64_t seen = streams_[i].capture_seen();
    if (seen != 0 && (now <= seen || now - seen < capture_expiry_ticks_)) return true;
  }
  return false;
}

}  // namespace pig::cuda
