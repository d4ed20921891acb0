// SPDX-License-Identifier: Apache-2.0
#include "record/module_times.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "base/ticks.h"
#include "cuda/device_gate.h"
#include "record/module_sampling.h"
#include "record/recorder.h"
#include "record/recording_thread.h"

namespace pig {
namespace {

struct Pass {
  uint64_t number;
  uint32_t epoch;
  ThreadState* caller;
  ModulePlace place;
  size_t floor;                        ///< of its caller's position, before it
  std::vector<ThreadState*> visitors;  ///< other threads that it has run on
};

/// The passes that go on, in the order in which they began.
struct Passes {
  std::mutex mutex;
  std::vector<Pass> all;
  uint64_t last = 0;
  std::atomic<uint64_t> version{1};  ///< changes as one begins or ends
  std::atomic<size_t> count{0};

  void changed() {
    count.store(all.size(), std::memory_order_relaxed);
    version.fetch_add(1, std::memory_order_release);
  }
};
Passes* passes = new Passes;

/// Deeper trees of watched modules are cut.
constexpr size_t kDeepest = 64;

ModuleStack& stack_of(ThreadState& thread, uint32_t epoch) {
  ModuleStack& stack = thread.make_modules();
  if (PIG_UNLIKELY(stack.epoch != epoch)) {
    stack.epoch = epoch;
    stack.calls.truncate(0);
    stack.position.truncate(0);
    stack.floor = 0;
    stack.pass = stack.passes_seen = 0;
  }
  return stack;
}

ModulePlace place_here(const ThreadState& thread) noexcept {
  const uint64_t step = open_step.load(std::memory_order_relaxed);
  const bool is_step_thread = static_cast<uint32_t>(step >> 32) == thread.serial();
  return {thread.innermost_path(), static_cast<uint32_t>(step),
          is_step_thread ? kStepThread : uint8_t{0}};
}

/// The pass that runs on a thread: its own innermost one, or else the only one that there is.
/// Nothing where that can't be told. Under the lock.
Pass* pass_on(const ThreadState& thread, uint32_t epoch) {
  Pass* found = nullptr;
  size_t count = 0;
  for (Pass& pass : passes->all) {
    if (pass.epoch != epoch) continue;
    if (pass.caller == &thread) {
      found = &pass;
      count = 1;
    } else if (found == nullptr || found->caller != &thread) {
      found = &pass;
      ++count;
    }
  }
  return count == 1 ? found : nullptr;
}

/// Finds the pass that runs on the calling thread, and where it hangs. False where there is none.
bool find_pass(ThreadState& thread, ModuleStack& stack, uint32_t epoch) {
  if (PIG_LIKELY(stack.passes_seen == passes->version.load(std::memory_order_acquire)))
    return stack.pass != 0;
  const std::lock_guard guard(passes->mutex);
  Pass* pass = pass_on(thread, epoch);
  if (pass != nullptr && pass->caller != &thread && stack.pass != pass->number) {
    pass->visitors.push_back(&thread);
    stack.position.truncate(0);  // what another pass has left was taken by its end
    stack.floor = 0;
  }
  stack.pass = pass != nullptr ? pass->number : 0;
  if (pass != nullptr) stack.place = pass->place;
  stack.passes_seen = passes->version.load(std::memory_order_relaxed);
  return pass != nullptr;
}

/// The event of a module's boundary, or 0. To record it takes the device about as long as the host,
/// so it counts twice in what modules cost.
cuda::EventRef boundary(ThreadState& thread, uint64_t now, uint32_t step, bool ends) {
  const cuda::Gate gate = cuda::device_gate.load(std::memory_order_relaxed);
  if (!ends && timing_of(gate) != cuda::Gate::kTimed) return 0;
  const ModuleCost on_device;
  return thread.module_boundary(now, step, ends);
}

/// Records what lies above `keep`, the innermost first, and takes it away.
void close_above(ThreadState& thread, OpenModules& opened, size_t keep, uint64_t now,
                 cuda::EventRef event) {
  for (size_t i = opened.size(); i > keep; --i) {
    const OpenModule& one = opened[i - 1];
    const uint64_t duration = now > one.begin ? now - one.begin : 0;
    thread.record(RawSpan::pack(one.begin, duration, 0, one.step, one.path,
                                static_cast<uint32_t>(i - 1), one.flags),
                  {one.event, event});
  }
  // Only now: until then the harvester found the events here, and now it finds them in the ring.
  opened.truncate(keep);
}

bool has_event(const OpenModules& opened, size_t from) {
  for (size_t i = from; i < opened.size(); ++i)
    if (opened[i].event != 0) return true;
  return false;
}

/// The position moves: all above `keep` is left, then those of `chain` from `keep` on are entered.
void move(ThreadState& thread, ModuleStack& stack, size_t keep, const WatchedModule* const* chain,
          size_t depth, uint64_t now) {
  const ModulePlace& place = stack.place;
  const cuda::EventRef event =
      boundary(thread, now, place.step, /*ends=*/has_event(stack.position, keep));
  // While the driver was at it another thread may have ended the recording.
  if (PIG_UNLIKELY(active_epoch.load(std::memory_order_relaxed) != stack.epoch)) return;
  close_above(thread, stack.position, keep, now, event);
  for (size_t i = keep; i < depth; ++i)
    stack.position.push({chain[i], now, event, thread.path_of(place.path, chain[i]->backward),
                         place.step, 0, place.flags});
}

/// The position becomes a module's, under those around it.
void enter(ThreadState& thread, ModuleStack& stack, const WatchedModule& module, uint64_t now) {
  std::array<const WatchedModule*, kDeepest> chain;
  const size_t depth = size_t{module.depth} + 1;
  const WatchedModule* link = &module;
  for (size_t i = depth; i > 0; --i, link = link->parent) chain[i - 1] = link;
  const OpenModules& position = stack.position;
  size_t shared = 0;
  while (shared < std::min(depth, position.size()) && position[shared].module == chain[shared])
    ++shared;
  if (shared == depth) {
    if (shared <= stack.floor) return;  // the pass around this one is in it
    --shared;                           // it was called twice, the one after the other
  }
  move(thread, stack, std::max(shared, stack.floor), chain.data(), depth, now);
}

void leave(ThreadState& thread, ModuleStack& stack, const WatchedModule& module, uint64_t now) {
  for (size_t i = stack.position.size(); i > stack.floor; --i) {
    if (stack.position[i - 1].module != &module) continue;
    move(thread, stack, i - 1, nullptr, 0, now);
    return;
  }
}

/// Calls a function with the calling thread, its stack and the time, while a recording is active.
/// Where it is out of memory something is not recorded.
template <typename Function>
void with_stack(Function function) noexcept {
  const uint64_t now = read_ticks();
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  ThreadState* thread = epoch != 0 ? recording_thread(epoch) : nullptr;
  if (thread == nullptr) return;
  with_memory(false, [&] {
    function(*thread, stack_of(*thread, epoch), now);
    return true;
  });
}

uint64_t begin_call(ThreadState& thread, ModuleStack& stack, const WatchedModule& module,
                    bool recomputes) {
  ModulePlace place = place_here(thread);
  if (PIG_UNLIKELY(recomputes) && find_pass(thread, stack, stack.epoch)) {
    if (place.path == kNoPath) place = stack.place;
    // It shows where the pass is, if no mark has: the output of a checkpoint that runs a pass of
    // its own has a node that no module has made.
    bool is_inside = !stack.calls.empty();
    for (size_t i = 0; i < stack.position.size(); ++i)
      is_inside = is_inside || stack.position[i].module == &module;
    if (!is_inside) enter(thread, stack, module, read_ticks());
  }
  const uint32_t path = thread.path_of(place.path, recomputes ? module.recompute : module.forward);
  stack.next_serial += stack.next_serial == 0xFFFFFFFFu ? 2 : 1;
  // Last, as with a phase; the record of the event lies within the span.
  const uint64_t now = read_ticks();
  const cuda::EventRef event = boundary(thread, now, place.step, /*ends=*/false);
  if (PIG_UNLIKELY(active_epoch.load(std::memory_order_relaxed) != stack.epoch)) return 0;
  if (!stack.calls.push({&module, now, event, path, place.step, stack.next_serial, place.flags})) {
    Recorder::instance().drops().add(Drop::kDepth);
    return 0;
  }
  return static_cast<uint64_t>(stack.epoch) << 32 | stack.next_serial;
}

void end_call(ThreadState& thread, ModuleStack& stack, uint64_t token, uint64_t now) {
  if (stack.epoch != token >> 32) return;
  OpenModules& calls = stack.calls;
  size_t at = calls.size();
  while (at > 0 && calls[at - 1].serial != static_cast<uint32_t>(token)) --at;
  if (at == 0) return;
  calls.truncate(at);  // the ends of those above did not come: greenlets took turns
  cuda::EventRef event = 0;
  if (PIG_UNLIKELY(calls[at - 1].event != 0)) {
    event = boundary(thread, now, calls[at - 1].step, /*ends=*/true);
    if (active_epoch.load(std::memory_order_relaxed) != stack.epoch) return;
  }
  close_above(thread, calls, at - 1, now, event);
}

uint64_t begin_pass(ThreadState& thread, ModuleStack& stack) {
  const std::lock_guard guard(passes->mutex);
  const Pass* around = pass_on(thread, stack.epoch);
  const bool is_within = around != nullptr && around->caller == &thread;
  ModulePlace place = place_here(thread);
  // A node's own pass on a thread of autograd's hangs where that thread's pass hangs.
  if (place.path == kNoPath && around != nullptr) place = around->place;
  const bool goes_on = is_within || (around != nullptr && stack.pass == around->number);
  if (!goes_on) stack.position.truncate(0);
  passes->all.push_back({++passes->last, stack.epoch, &thread, place, stack.floor, {}});
  stack.floor = stack.position.size();
  passes->changed();
  return passes->last;
}

void end_pass(ThreadState& thread, ModuleStack& stack, uint64_t number, uint64_t now) {
  Pass pass{};
  {
    const std::lock_guard guard(passes->mutex);
    const auto found = std::find_if(passes->all.begin(), passes->all.end(),
                                    [number](const Pass& one) { return one.number == number; });
    if (found == passes->all.end()) return;
    pass = std::move(*found);
    passes->all.erase(found);
    passes->changed();
  }
  if (pass.epoch != stack.epoch || pass.caller != &thread) return;
  stack.place = pass.place;
  move(thread, stack, stack.floor, nullptr, 0, now);
  stack.floor = pass.floor;
  for (ThreadState* visitor : pass.visitors) {
    ModuleStack* left = visitor->modules();
    if (left == nullptr || left->epoch != stack.epoch) continue;
    bool ends = false;
    {
      const std::lock_guard guard(passes->mutex);
      ends = left->pass == number && has_event(left->position, 0);
    }
    // Not under the lock, as it may block.
    const cuda::EventRef event = ends ? boundary(thread, now, pass.place.step, /*ends=*/true) : 0;
    if (active_epoch.load(std::memory_order_relaxed) != stack.epoch) return;
    const std::lock_guard guard(passes->mutex);
    // Otherwise it is in another pass by now, which has taken it away.
    if (left->pass == number) close_above(thread, left->position, 0, now, event);
  }
}

}  // namespace

uint64_t begin_module(const WatchedModule& module, bool recomputes) noexcept {
  uint64_t token = 0;
  with_stack([&](ThreadState& thread, ModuleStack& stack, uint64_t) {
    token = begin_call(thread, stack, module, recomputes);
  });
  return token;
}

void end_module(uint64_t token) noexcept {
  if (token == 0) return;
  with_stack([token](ThreadState& thread, ModuleStack& stack, uint64_t now) {
    end_call(thread, stack, token, now);
  });
}

uint64_t begin_backward_pass() noexcept {
  uint64_t number = 0;
  with_stack([&number](ThreadState& thread, ModuleStack& stack, uint64_t) {
    number = begin_pass(thread, stack);
  });
  return number;
}

void end_backward_pass(uint64_t number) noexcept {
  if (number == 0) return;
  bool is_ended = false;
  with_stack([&](ThreadState& thread, ModuleStack& stack, uint64_t now) {
    is_ended = true;
    end_pass(thread, stack, number, now);
  });
  if (is_ended) return;
  // The recording is over.
  const std::lock_guard guard(passes->mutex);
  std::erase_if(passes->all, [number](const Pass& one) { return one.number == number; });
  passes->changed();
}

bool is_any_backward_pass() noexcept { return passes->count.load(std::memory_order_relaxed) != 0; }

bool is_in_backward_pass() noexcept {
  if (!is_any_backward_pass()) return false;
  const std::lock_guard guard(passes->mutex);
  return std::any_of(passes->all.begin(), passes->all.end(),
                     [](const Pass& pass) { return pass.caller == this_thread; });
}

void enter_in_backward(const WatchedModule& module) noexcept {
  with_stack([&module](ThreadState& thread, ModuleStack& stack, uint64_t now) {
    if (find_pass(thread, stack, stack.epoch)) enter(thread, stack, module, now);
  });
}

void leave_in_backward(const WatchedModule& module) noexcept {
  with_stack([&module](ThreadState& thread, ModuleStack& stack, uint64_t now) {
    if (find_pass(thread, stack, stack.epoch)) leave(thread, stack, module, now);
  });
}

void forget_backward_passes_in_child() noexcept {
  passes = new Passes;  // the lock may have been held by a thread that is not here
}

}  // namespace pig
