// SPDX-License-Identifier: Apache-2.0
#include "cuda/event_recorder.h"

#include "base/ticks.h"
#include "cuda/blocking_call.h"
#include "cuda/device_timing.h"

namespace pig::cuda {

void EventRecorder::reset(uint32_t thread) {
  context_ = nullptr;
  timeline_ = nullptr;
  stream_ = nullptr;
  last_return_ = 0;
  last_event_ = 0;
  thread_ = thread;
}

EventRef EventRecorder::boundary(uint64_t now, uint32_t step) noexcept {
  const EventRef before = last_event_;
  const EventRef event = event_of(now, step);
  // A shared event has cost next to nothing. One that was not to be had has cost its search.
  if (event == 0 || event != before)
    DeviceTiming::instance().count_cost(read_ticks() - now, event != 0);
  last_event_ = event;
  return event;
}

// Inlined, like `record`: calls and returns would take a tenth of all that a boundary takes.
[[gnu::always_inline]] inline EventRef EventRecorder::event_of(uint64_t now,
                                                               uint32_t step) noexcept {
  DeviceTiming& timing = DeviceTiming::instance();
  const Driver& driver = timing.driver();
  Context context = nullptr;
  if (driver.CtxGetCurrent(&context) != kSuccess) return skip(Drop::kDeviceNoContext);
  if (PIG_UNLIKELY(context != context_ || context == nullptr)) find_timeline(context);
  if (PIG_UNLIKELY(timeline_ == nullptr)) return skip(Drop::kDeviceNoContext);
  if (PIG_UNLIKELY(timeline_->state() != EventTimeline::State::kReady)) return skip(unavailable());

  Stream stream = nullptr;
  if (PIG_UNLIKELY(timing.current_stream(timeline_->device(), &stream) != 0))
    return skip(Drop::kDeviceNoContext);
  if (PIG_UNLIKELY(!timing.times(stream))) {
    timing.side_stream_skipped();
    return skip(Drop::kDeviceSideStream);
  }
  const bool same_stream = stream_ != nullptr && stream_->handle == stream;
  if (PIG_UNLIKELY(!same_stream)) {
    stream_ = timeline_->stream_use(stream, thread_);
    if (stream_ == nullptr) return skip(Drop::kDeviceRingFull);
  }
  stream_->use(thread_, step);

  if (same_stream && last_event_ != 0 && now - last_return_ < timing.share_ticks() &&
      !stream_->shared_in(step))
    return last_event_;

  const EventTimeline::Recorded recorded = record(driver);
  if (PIG_UNLIKELY(recorded.sequence == 0))
    return recorded.error ? skip(recorded.error) : skip(Drop::kDeviceRingFull);
  return event_ref(timeline_->number(), recorded.sequence);
}

void EventRecorder::find_timeline(Context context) noexcept {
  if (context == context_ && timeline_ != nullptr) return;
  DeviceTiming& timing = DeviceTiming::instance();
  context_ = context;
  stream_ = nullptr;
  if (context == nullptr) {
    timeline_ = timing.timeline_of_no_context();
  } else {
    const BlockingCall blocking;
    timeline_ = timing.timeline_of(context);
  }
}

[[gnu::always_inline]] inline EventTimeline::Recorded EventRecorder::record(
    const Driver& driver) noexcept {
  const BlockingCall blocking;
  // A thread of autograd's has no context until its first kernel: for the call it gets the one that
  // PyTorch has made for the device.
  if (PIG_UNLIKELY(context_ == nullptr))
    if (const int result = driver.CtxSetCurrent(timeline_->context()))
      return {0, {"cuCtxSetCurrent", result}};
  EventTimeline::Recorded recorded{};
  CaptureStatus status = kNotCapturing;
  const int result = driver.StreamIsCapturing(stream_->handle, &status);
  if (PIG_UNLIKELY(result != kSuccess || status != kNotCapturing)) {
    recorded.error = {"cuStreamIsCapturing", result != kSuccess ? result : kCapturedEvent};
  } else {
    stream_->set_capture_seen(0);
    recorded = timeline_->record(*stream_);
    // Before others get the chance to enqueue something.
    last_return_ = read_ticks();
  }
  if (PIG_UNLIKELY(context_ == nullptr)) driver.CtxSetCurrent(nullptr);
  return recorded;
}

EventRef EventRecorder::skip(Drop cause) noexcept {
  DeviceTiming::instance().drops().add(cause);
  return 0;
}

EventRef EventRecorder::skip(const DriverError& error) noexcept {
  if (is_capture_code(error.result)) {
    stream_->set_capture_seen(read_ticks());
    return skip(Drop::kDeviceCapturing);
  }
  if (error.result == kInvalidContext) return skip(Drop::kDeviceNoContext);
  timeline_->fail(error);
  return skip(Drop::kDeviceFailed);
}

Drop EventRecorder::unavailable() const {
  return timeline_->state() == EventTimeline::State::kFailed ? Drop::kDeviceFailed
                                                             : Drop::kDevicePreparing;
}

}  // namespace pig::cuda
