// SPDX-License-Identifier: Apache-2.0
#include "hot/thread_state.h"

#include <algorithm>
#include <array>

#include "base/throwing.h"
#include "cuda/device_timing.h"
#include "hot/active_recording.h"

namespace pig {
namespace {

ThreadState no_thread;  // epoch 0: never equal to an active recording's

/// With fewer it isn't worth the while to move frames.
constexpr uint32_t kManyTombstones = 32;

}  // namespace

Tasks tasks = {[] { return uintptr_t{1}; }, [](uintptr_t) { return uintptr_t{0}; }};
std::atomic<uint32_t> active_epoch{0};
std::atomic<uint64_t> open_step{kNoOpenStep};
std::atomic<uint64_t> observed_calls{0};
std::atomic<BoundaryListener*> boundary_listener{nullptr};
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
  unopened_count_ = 0;
  unopened_.clear();
  tombstones_ = 0;
  if (ModuleStack* left = modules()) left->epoch = 0;  // of a thread that had the state before
  event_recorder_.reset(serial);
  frames_[0] = Frame{0, 0, 0, {}, kNoPath, kNoStep, 0xFFFFFFFFu, 0, 0xFFFF, 0, 0, false};
  top_.store(&frames_[0], std::memory_order_relaxed);
  last_ = &frames_[kMaxFrames - 1];
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
    Frame* frame = find_serial(request.serial);
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

uint32_t ThreadState::find_open(uint32_t phase, uintptr_t block) const {
  const std::lock_guard lock(moving_mutex_);
  for (const Frame* frame = top_.load(std::memory_order_acquire); frame != frames_.get(); --frame) {
    const uint32_t serial = observe(frame->serial);
    if (observe(frame->caller.block) == block && observe(frame->phase) == phase &&
        !observe(frame->closed) && observe(frame->serial) == serial)
      return serial;
  }
  return 0;
}

template <typename Fits>
Frame* ThreadState::find(Fits fits) const {
  for (Frame* frame = top_.load(std::memory_order_relaxed); frame != frames_.get(); --frame)
    if (!frame->closed && fits(*frame)) return frame;
  return nullptr;
}

Frame* ThreadState::find_serial(uint32_t serial) {
  Frame* found = find([serial](const Frame& frame) { return frame.serial == serial; });
  if (found == nullptr) context_.drops->add(Drop::kUnmatchedEnds);
  return found;
}

const Frame* ThreadState::innermost_of(uintptr_t task) const {
  for (; task != 0; task = tasks.around(task))
    if (Frame* found = find([task](const Frame& frame) { return frame.caller.task == task; }))
      return found;
  return &frames_[0];
}

uint32_t ThreadState::begin_elsewhere(uint32_t phase, Caller caller) {
  Frame* top = top_.load(std::memory_order_relaxed);
  const auto open_frames = static_cast<uint32_t>(top - frames_.get()) - tombstones_;
  if ((top == last_ && tombstones_ != 0) || tombstones_ > 2 * open_frames + kManyTombstones) bury();
  top = top_.load(std::memory_order_relaxed);
  if (top == last_) {
    context_.drops->add(Drop::kDepth);
    skip_frame(phase, caller);
    return 0;
  }
  // The next outermost frame of the task finds its parent at once.
  if (top == &frames_[0]) top->caller.task = caller.task;
  return open(innermost_of(caller.task), top, phase, caller);
}

template <typename Fits>
bool ThreadState::end_innermost(uint32_t phase, uint64_t now, Fits fits) {
  const auto is_it = [&](const auto& one) { return one.phase == phase && fits(one.caller); };
  Frame* frame = find(is_it);
  const auto unopened = std::find_if(unopened_.rbegin(), unopened_.rend(), is_it);
  if (unopened != unopened_.rend() &&
      (frame == nullptr || static_cast<int32_t>(unopened->serial - frame->serial) > 0)) {
    unopened_.erase(std::next(unopened).base());
    --unopened_count_;
    return true;
  }
  if (frame != nullptr) close(*frame, now);
  return frame != nullptr;
}

bool ThreadState::end_below(uint32_t phase, Caller caller, uint64_t now) {
  return end_innermost(phase, now, [caller](Caller it) { return it.block == caller.block; });
}

bool ThreadState::end_any(uint32_t phase, Caller caller, uint64_t now) {
  if (end_innermost(phase, now, [caller](Caller it) { return it.task == caller.task; }))
    return true;
  if (unopened_count_ > unopened_.size()) {
    --unopened_count_;
    return true;
  }
  return caller.is_call() && end_innermost(phase, now, [](Caller it) { return it.is_call(); });
}

void ThreadState::skip_frame(uint32_t phase, Caller caller) noexcept {
  if (caller.block == 0) return;
  ++unopened_count_;
  if (unopened_.size() == kMaxFrames) return;
  try {
    unopened_.push_back({phase, next_frame_, caller});
  } catch (const std::bad_alloc&) {  // its end will close nothing, if there is nothing it fits
  }
}

/// Takes the tombstones out, but for parents, whose paths may be needed yet.
void ThreadState::bury() {
  std::array<bool, kMaxFrames> is_parent{};
  std::array<uint16_t, kMaxFrames> moved;
  Frame* const top = top_.load(std::memory_order_relaxed);
  for (const Frame* frame = top; frame != &frames_[0]; --frame)
    if (!frame->closed) is_parent[frame->parent] = true;
  const std::lock_guard lock(moving_mutex_);
  Frame* to = &frames_[0];
  moved[0] = 0;
  tombstones_ = 0;
  for (Frame* frame = to + 1; frame <= top; ++frame) {
    const auto index = static_cast<size_t>(frame - &frames_[0]);
    if (frame->closed && !is_parent[index]) continue;
    frame->parent = is_parent[frame->parent] ? moved[frame->parent] : uint16_t{0};
    moved[index] = static_cast<uint16_t>(++to - &frames_[0]);
    if (frame->closed) ++tombstones_;
    *to = *frame;
  }
  top_.store(to, std::memory_order_release);
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

BoundaryListener* ThreadState::listener_of(const Frame& frame) {
  const cuda::Gate gate = cuda::device_gate.load(std::memory_order_acquire);
  if (PIG_LIKELY(boundaries_of(gate) == cuda::Gate::kClosed) || (frame.flags & kStepThread) == 0 ||
      active_epoch.load(std::memory_order_relaxed) != recording_)
    return nullptr;
  return boundary_listener.load(std::memory_order_acquire);
}

[[gnu::always_inline]] inline void ThreadState::record_begin(Frame& frame,
                                                             cuda::Gate gate) noexcept {
  if (!ring_.hold_events()) return context_.drops->add(Drop::kDeviceRingFull);
  cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  const bool outside = gate == cuda::Gate::kOutside;
  if (outside && !timing.may_outside()) return context_.drops->add(Drop::kDeviceBudget);
  const cuda::EventRef event =
      event_recorder_.boundary(frame.begin, frame.step, cuda::Boundary::kPhaseBegin);
  // A thread without a device, which records no event, takes nothing from those that have one.
  if (outside && event != 0) timing.count_outside();
  publish(frame.event, event);
}

void ThreadState::time_begin(Frame& frame) noexcept {
  // Acquired only here: who opened the gate had set up what is used below.
  const cuda::Gate gate = cuda::device_gate.load(std::memory_order_acquire);
  if (context_.overflow == nullptr) return;
  if (timing_of(gate) != cuda::Gate::kClosed) record_begin(frame, timing_of(gate));
  if (BoundaryListener* listener = listener_of(frame)) {
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
  return event_recorder_.boundary(now, step, cuda::Boundary::kModule);
}

ModuleStack& ThreadState::make_modules() {
  if (modules() == nullptr) modules_.store(new ModuleStack, std::memory_order_release);
  return *modules();
}

void ThreadState::close_timed(Frame& frame, uint64_t now) {
  cuda::EventRef end = 0;
  if (PIG_LIKELY(frame.event != cuda::kOnlyHeard)) {
    const auto step = static_cast<uint32_t>(open_step.load(std::memory_order_relaxed));
    end = event_recorder_.boundary(now, step, cuda::Boundary::kPhaseEnd);
    // While the driver was at it another thread may have ended the recording, and with it this
    // stack.
    if (PIG_UNLIKELY(active_epoch.load(std::memory_order_relaxed) != recording_)) return;
  }
  if (BoundaryListener* listener = listener_of(frame)) {
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
  const std::lock_guard lock(moving_mutex_);
  const Frame* const root = frames_.get();
  const auto depth = [&] { return top_.load(std::memory_order_acquire) - root; };
  const auto top = depth();
  for (auto i = 1; i <= top; ++i) {
    const Frame& frame = root[i];
    serials[i] = observe(frame.serial);
    out.push_back({observe(frame.begin), observe(frame.event), observe(frame.path),
                   observe(frame.step), observe(frame.depth)});
  }
  // The frames that still have their serials were all on the stack when `top_` was read again; a
  // frame that was replaced, or was just being written, takes those above it along.
  const auto last = std::min(top, depth());
  size_t kept = before;
  for (auto i = 1; i <= last && observe(root[i].serial) == serials[i]; ++i)
    if (!observe(root[i].closed)) out[kept++] = out[before + i - 1];
  out.resize(kept);
}

}  // namespace pig
