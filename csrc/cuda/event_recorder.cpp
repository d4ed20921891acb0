// SPDX-License-Identifier: Apache-2.0
#include "cuda/event_recorder.h"

#include "base/ticks.h"
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
  DeviceTiming& timing = DeviceTiming::instance();
  const Driver& driver = timing.driver();

  Context context = nullptr;
  if (driver.CtxGetCurrent(&context) != kSuccess || context == nullptr)
    return skip(Drop::kDeviceNoContext);
  if (PIG_UNLIKELY(context != context_)) {
    context_ = context;
    stream_ = nullptr;
    timeline_ = timing.timeline_of(context);
  }
  if (PIG_UNLIKELY(timeline_ == nullptr || timeline_->state() != EventTimeline::State::kReady))
    return skip(unavailable());

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

  CaptureStatus status = kNotCapturing;
  const int result = driver.StreamIsCapturing(stream, &status);
  if (PIG_UNLIKELY(result != kSuccess || status != kNotCapturing)) {
    return skip({"cuStreamIsCapturing", result != kSuccess ? result : kCapturedEvent});
  }
  const EventTimeline::Recorded recorded = timeline_->record(*stream_);
  if (PIG_UNLIKELY(recorded.sequence == 0)) {
    return recorded.error ? skip(recorded.error) : skip(Drop::kDeviceRingFull);
  }
  last_return_ = read_ticks();
  timing.count_record(last_return_ - now);
  return last_event_ = event_ref(timeline_->number(), recorded.sequence);
}

EventRef EventRecorder::skip(Drop cause) noexcept {
  last_event_ = 0;
  DeviceTiming::instance().drops().add(cause);
  return 0;
}

EventRef EventRecorder::skip(const DriverError& error) noexcept {
  if (is_capture_code(error.result)) {
    stream_->set_capturing(true);
    return skip(Drop::kDeviceCapturing);
  }
  if (error.result == kInvalidContext) return skip(Drop::kDeviceNoContext);
  timeline_->fail(error);
  return skip(Drop::kDeviceFailed);
}

Drop EventRecorder::unavailable() const {
  if (timeline_ == nullptr) return Drop::kDeviceNoContext;
  return timeline_->state() == EventTimeline::State::kFailed ? Drop::kDeviceFailed
                                                             : Drop::kDevicePreparing;
}

}  // namespace pig::cuda
