// SPDX-License-Identifier: Apache-2.0
#include "cuda/event_recorder.h"

#include "base/ticks.h"
#include "cuda/device_timing.h"
#include "cuda/driver_scopes.h"

namespace pig::cuda {

void EventRecorder::reset(uint32_t thread) {
  context_ = nullptr;
  timeline_ = nullptr;
  stream_ = {};
  last_return_ = 0;
  last_event_ = 0;
  in_hand_.store(0, std::memory_order_relaxed);
  thread_ = thread;
  checked_step_ = ~uint64_t{0};
}

EventRef EventRecorder::boundary(uint64_t now, uint32_t step, Boundary what) noexcept {
  DeviceTiming& timing = DeviceTiming::instance();
  const uint32_t recording = timing.recording();
  const EventRef before = last_event_;
  last_event_ = event_of(now, step, what);
  // While the driver was at it another thread may have ended the recording and begun the next.
  if (PIG_UNLIKELY(timing.recording() != recording)) return last_event_ = 0;
  if (PIG_UNLIKELY(last_event_ == 0)) timing.drops().add(skipped_);
  // A shared event has cost next to nothing. One that was not available has cost its search.
  if (last_event_ == 0 || last_event_ != before)
    timing.count_cost(read_ticks() - now, last_event_ != 0 && !is_stamp(last_event_));
  return last_event_;
}

// Inlined, like `record`: calls and returns would take a tenth of all that a boundary takes.
[[gnu::always_inline]] inline EventRef EventRecorder::event_of(uint64_t now, uint32_t step,
                                                               Boundary what) noexcept {
  DeviceTiming& timing = DeviceTiming::instance();
  const Driver& driver = timing.driver();
  Context context = nullptr;
  if (driver.CtxGetCurrent(&context) != kSuccess) return skip(Drop::kDeviceNoContext);
  if (PIG_UNLIKELY(context != context_ || context == nullptr)) find_timeline(context);
  if (PIG_UNLIKELY(timeline_ == nullptr)) return skip(Drop::kDeviceNoContext);
  if (PIG_UNLIKELY(timeline_->state() != EventTimeline::State::kReady)) return skip(unavailable());
  if (PIG_UNLIKELY(checked_step_ != step)) {
    checked_step_ = step;
    const BlockingCall blocking;
    if (!timeline_->has_its_context()) return skip(Drop::kDeviceFailed);
  }

  Stream stream = nullptr;
  if (PIG_UNLIKELY(timing.current_stream(timeline_->device(), &stream) != 0))
    return skip(Drop::kDeviceNoContext);
  if (PIG_UNLIKELY(!timing.times(stream))) {
    timing.side_stream_skipped();
    return skip(Drop::kDeviceSideStream);
  }
  const bool same_stream = stream_.is_valid() && stream_.handle == stream;
  if (PIG_UNLIKELY(!same_stream)) {
    stream_ = timeline_->find_stream(stream, thread_);
    if (stream_.use == nullptr) return skip(Drop::kDeviceRingFull);
    if (stream_.use->is_refused()) {
      stream_ = {};  // so that each boundary comes here
      return skip(Drop::kDeviceNoContext);
    }
  }
  stream_.use->use(thread_, step);

  if (same_stream && last_event_ != 0 && now - last_return_ < timing.share_ticks() &&
      !stream_.use->shared_in(step))
    return last_event_;
  return record(driver, what);
}

void EventRecorder::find_timeline(Context context) noexcept {
  DeviceTiming& timing = DeviceTiming::instance();
  EventTimeline* const before = timeline_;
  if (context == nullptr) {
    // The thread's current device may change without its context.
    timeline_ = timing.timeline_of_no_context();
  } else {
    const BlockingCall blocking;
    timeline_ = timing.timeline_of(context);
  }
  if (context != context_ || timeline_ != before) stream_ = {};
  context_ = context;
}

[[gnu::always_inline]] inline EventRef EventRecorder::record(const Driver& driver,
                                                             Boundary what) noexcept {
  DriverError error;
  CaptureStatus status = kNotCapturing;
  EventRef stamped = 0;
  uint64_t sequence = 0;
  {
    const BlockingCall blocking;
    // A thread of autograd's has no context until its first kernel: for the call it gets the one
    // that PyTorch has made for the device.
    if (PIG_UNLIKELY(context_ == nullptr))
      error = {"cuCtxSetCurrent", driver.CtxSetCurrent(timeline_->context())};
    if (PIG_LIKELY(!error)) {
      error = {"cuStreamIsCapturing", driver.StreamIsCapturing(stream_.handle, &status)};
      if (PIG_UNLIKELY(status != kNotCapturing)) {
        error.result = kCapturedEvent;
        if (status == kCapturing) stamped = stamp(what);
      }
      if (PIG_LIKELY(!error) && (sequence = timeline_->claim(stream_)) != 0) {
        // Before it is published: its time may be known before this thread can note it.
        in_hand_.store(event_ref(timeline_->number(), sequence), std::memory_order_release);
        stream_.use->set_capture_seen(0);
        error = {"cuEventRecord", timeline_->record(sequence, stream_.handle)};
        // Before others get the chance to enqueue something.
        last_return_ = read_ticks();
      }
      if (PIG_UNLIKELY(context_ == nullptr)) driver.CtxSetCurrent(nullptr);
    }
  }
  if (PIG_UNLIKELY(error)) {
    const Drop cause = skipped_;
    skip(error);
    if (status == kCapturing) skipped_ = cause;
    return stamped;
  }
  return PIG_LIKELY(sequence != 0) ? event_ref(timeline_->number(), sequence)
                                   : skip(Drop::kDeviceRingFull);
}

/// Or 0; then `skipped_` says why.
EventRef EventRecorder::stamp(Boundary what) noexcept {
  skipped_ = Drop::kDeviceCapturing;
  last_return_ = 0;  // whether the next boundary may share it, the graph tells, and not the time
  const uint32_t most = DeviceTiming::instance().most_graph_nodes();
  if (what == Boundary::kModule || most == 0) return 0;
  const bool is_here = is_stamp(last_event_) && timeline_of(last_event_) == timeline_->number();
  const uint32_t last = is_here ? node_of(last_event_) : 0;
  const uint32_t node = timeline_->stamps().stamp(stream_.handle, stream_.number, last, most,
                                                  what == Boundary::kPhaseBegin, skipped_);
  return node != 0 ? stamp_ref(timeline_->number(), node) : 0;
}

EventRef EventRecorder::skip(Drop cause) noexcept {
  skipped_ = cause;
  return 0;
}

EventRef EventRecorder::skip(const DriverError& error) noexcept {
  if (is_capture_code(error.result)) {
    if (stream_.is_valid()) stream_.use->set_capture_seen(read_ticks());
    return skip(Drop::kDeviceCapturing);
  }
  if (error.result == kInvalidContext) return skip(Drop::kDeviceNoContext);
  if (error.result == kInvalidHandle && !DeviceTiming::is_default(stream_.handle)) {
    if (stream_.is_valid()) stream_.use->refuse();  // it may have had to wait for the GIL
    stream_ = {};
    return skip(Drop::kDeviceNoContext);
  }
  timeline_->fail(error);
  return skip(Drop::kDeviceFailed);
}

Drop EventRecorder::unavailable() const {
  return timeline_->state() == EventTimeline::State::kFailed ? Drop::kDeviceFailed
                                                             : Drop::kDevicePreparing;
}

}  // namespace pig::cuda
