// SPDX-License-Identifier: Apache-2.0
#include "hot/thread_state.h"

#include <algorithm>
#include <array>

#include "base/throwing.h"
#include "cuda/device_timing.h"
#include "hot/border_listener.h"

namespace pig {
namespace {

ThreadState no_thread;  // epoch 0: never equal to an active recording's

}  // namespace

std::atomic<uint32_t> active_epoch{0};
std::atomic<uint64_t> open_step{kNoOpenStep};
std::atomic<BorderListener*> border_listener{nullptr};
thread_local ThreadState* this_thread = &no_thread;

void forget_this_thread() { this_thread = &no_thread; }

void ThreadState::get_buffers() {
  // Not value-initialised: the pages are touched only as they are used.
  if (!frames_) frames_.reset(new Frame[kMaxFrames]);
  ring_.get_buffer();
}

void ThreadState::reset(const Context& context, uint32_t epoch, uint32_t serial) {
  get_buffers();
  ring_.reset(context.overflow, context.wake_harvester);
  context_ = context;
  recording_ = epoch;
  serial_ = serial;
  beyond_stack_ = 0;
  if (ModuleStack* left = modules()) left->epoch = 0;  // of a thread that had the state before
  event_recorder_.reset(serial);
  frames_[0] = Frame{0, 0, 0, kNoPath, kNoStep, 0xFFFFFFFFu, 0, 0xFFFF, 0, 0, false};
  top_.store(0, std::memory_order_relaxed);
  for (PathCacheEntry& entry : path_cache_)
    entry.key = ~uint64_t{0};  // (no path, no phase): never asked for
  {
    const std::lock_guard requests_lock(requests_mutex_);
    requests_.clear();
  }
  finished.store(false, std::memory_order_relaxed);
  epoch_.store(epoch, std::memory_order_relaxed);
}

bool ThreadState::catch_up(uint32_t epoch) {
  if (recording_ != epoch || epoch == 0) return false;
  run_requests();
  return true;
}

void ThreadState::run_requests() {
  std::vector<EndRequest> requests;
  {
    const std::lock_guard lock(requests_mutex_);
    requests.swap(requests_);
    epoch_.store(recording_, std::memory_order_relaxed);
  }
  for (const EndRequest& request : requests) {
    Frame* frame = find(&Frame::serial, request.serial);
    if (frame == nullptr) continue;
    // It ended earlier, on another thread: no event can be recorded for its end any more.
    if (frame->event > cuda::kOnlyHeard) context_.drops->add(Drop::kDeviceStreamChanged);
    finish(*frame, request.now);
  }
}

void ThreadState::request_end(uint32_t serial, uint64_t now) noexcept {
  const std::lock_guard lock(requests_mutex_);
  if (requests_.size() == kMaxFrames) return;  // more than can be open: tokens that were used twice
  if (!try_allocating([&] { requests_.push_back({serial, now}); }))
    return context_.drops->add(Drop::kNoMemory);
  epoch_.store(0, std::memory_order_relaxed);
}

Frame* ThreadState::find(uint32_t Frame::* field, uint32_t value) {
  for (uint32_t i = top_.load(std::memory_order_relaxed); i > 0; --i)
    if (frames_[i].*field == value && !frames_[i].closed) return &frames_[i];
  context_.drops->add(Drop::kUnmatchedEnds);
  return nullptr;
}

uint32_t ThreadState::intern_path(uint32_t parent, uint32_t phase) {
  bool full = false;
  const uint32_t path = context_.paths->intern(parent, phase, full);
  if (full) {
    context_.drops->add(Drop::kPaths);
  } else {
    path_cache_[(parent * 7 + phase) % kPathCache] = {static_cast<uint64_t>(parent) << 32 | phase,
                                                      path};
  }
  return path;
}

void ThreadState::overflow_depth() {
  ++beyond_stack_;
  context_.drops->add(Drop::kDepth);
}

BorderListener* ThreadState::listener_of(const Frame& frame) {
  const cuda::Gate gate = cuda::device_gate.load(std::memory_order_acquire);
  if (PIG_LIKELY(borders_of(gate) == cuda::Gate::kClosed) || (frame.flags & kStepThread) == 0 ||
      active_epoch.load(std::memory_order_relaxed) != recording_)
    return nullptr;
  return border_listener.load(std::memory_order_acquire);
}

[[gnu::always_inline]] inline void ThreadState::record_begin(Frame& frame,
                                                             cuda::Gate gate) noexcept {
  if (!ring_.hold_events()) return context_.drops->add(Drop::kDeviceRingFull);
  cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  const bool outside = gate == cuda::Gate::kOutside;
  if (outside && !timing.may_outside()) return context_.drops->add(Drop::kDeviceBudget);
  const cuda::EventRef event = event_recorder_.boundary(frame.begin, frame.step);
  // A thread without a device, which records no event, takes nothing from those that have one.
  if (outside && event != 0) timing.count_outside();
  publish(frame.event, event);
}

void ThreadState::time_begin(Frame& frame) noexcept {
  // Acquired only here: who opened the gate had set up what is used below.
  const cuda::Gate gate = cuda::device_gate.load(std::memory_order_acquire);
  if (context_.overflow == nullptr) return;
  if (timing_of(gate) != cuda::Gate::kClosed) record_begin(frame, timing_of(gate));
  if (BorderListener* listener = listener_of(frame)) {
    if (frame.event == 0) publish(frame.event, cuda::kOnlyHeard);
    listener->phase_begins(frame.path, frame.depth);
  }
}

cuda::EventRef ThreadState::module_boundary(uint64_t now, uint32_t step, bool ends) noexcept {
  const cuda::Gate gate = cuda::device_gate.load(std::memory_order_acquire);
  const bool is_timed = timing_of(gate) == cuda::Gate::kTimed;
  if (context_.overflow == nullptr || (!is_timed && !ends)) return 0;
  if (!ring_.hold_events()) {
    context_.drops->add(Drop::kDeviceRingFull);
    return 0;
  }
  return event_recorder_.boundary(now, step);
}

ModuleStack& ThreadState::make_modules() {
  if (modules() == nullptr) modules_.store(new ModuleStack, std::memory_order_release);
  return *modules();
}

void ThreadState::close_timed(Frame& frame, uint64_t now) {
  cuda::EventRef end = 0;
  if (PIG_LIKELY(frame.event != cuda::kOnlyHeard)) {
    const auto step = static_cast<uint32_t>(open_step.load(std::memory_order_relaxed));
    end = event_recorder_.boundary(now, step);
    // While the driver was at it another thread may have ended the recording, and with it this
    // stack.
    if (PIG_UNLIKELY(active_epoch.load(std::memory_order_relaxed) != recording_)) return;
  }
  if (BorderListener* listener = listener_of(frame)) {
    listener->phase_ends(frame.path, frame.depth);
    if (active_epoch.load(std::memory_order_relaxed) != recording_) return;
  }
  if (end != 0) {
    ring_.set_events({frame.event, end});
    frame.flags |= kDeviceTimed;
  }
  finish(frame, now);
}

void ThreadState::copy_open(std::vector<OpenFrame>& out) const {
  std::array<uint32_t, kMaxFrames> serials;
  const size_t before = out.size();
  const uint32_t top = top_.load(std::memory_order_acquire);
  for (uint32_t i = 1; i <= top; ++i) {
    const Frame& frame = frames_[i];
    serials[i] = observe(frame.serial);
    out.push_back({observe(frame.begin), observe(frame.event), observe(frame.path),
                   observe(frame.step), observe(frame.depth)});
  }
  // The frames that still have their serials were all on the stack when `top_` was read again; a
  // frame that was replaced, or was just being written, takes those above it along.
  const uint32_t last = std::min(top, top_.load(std::memory_order_acquire));
  size_t kept = before;
  for (uint32_t i = 1; i <= last && observe(frames_[i].serial) == serials[i]; ++i)
    if (!observe(frames_[i].closed)) out[kept++] = out[before + i - 1];
  out.resize(kept);
}

}  // namespace pig
