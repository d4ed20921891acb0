// SPDX-License-Identifier: Apache-2.0
#include "record/module_times.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/ticks.h"
#include "record/recorder.h"
#include "record/recording_thread.h"

namespace pig {
namespace {

/// What the spans of modules hang under.
struct Place {
  uint32_t path;
  uint32_t step;
  uint8_t flags;
};

struct Pass {
  uint64_t number;
  uint32_t epoch;
  ThreadState* caller;
  Place place;
  size_t floor;                        ///< of its caller's position, before it
  std::vector<ThreadState*> visitors;  ///< other threads that it has run on
};

/// The passes that go on, in the order in which they began.
struct Passes {
  std::mutex mutex;
  std::vector<Pass> all;
  uint64_t last = 0;
};
Passes* passes = new Passes;
std::atomic<uint32_t> pass_count{0};

/// Deeper trees of watched modules are cut.
constexpr size_t kDeepest = 64;

ThreadState* recording_thread_now(uint32_t& epoch) noexcept {
  epoch = active_epoch.load(std::memory_order_relaxed);
  return epoch != 0 ? recording_thread(epoch) : nullptr;
}

ModuleStack& stack_of(ThreadState& thread, uint32_t epoch) {
  ModuleStack& stack = thread.make_modules();
  if (PIG_UNLIKELY(stack.epoch != epoch)) {
    const std::lock_guard guard(stack.lock);
    stack.epoch = epoch;
    stack.calls.clear();
    stack.position.clear();
    stack.floor = 0;
    stack.pass = 0;
  }
  return stack;
}

Place place_here(const ThreadState& thread) noexcept {
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

Place place_of_call(const ThreadState& thread, uint32_t epoch, bool recomputes) {
  if (recomputes && thread.innermost_path() == kNoPath) {
    const std::lock_guard guard(passes->mutex);
    if (const Pass* pass = pass_on(thread, epoch)) return pass->place;
  }
  return place_here(thread);
}

/// Records what lies above `keep`, and takes it away. Its order is that in which it ends.
void close_above(ThreadState& thread, ModuleStack& stack, std::vector<ModuleStack::Open>& opened,
                 size_t keep, uint64_t now, cuda::EventRef event) {
  for (size_t i = opened.size(); i > keep; --i) {
    const ModuleStack::Open& one = opened[i - 1];
    const uint64_t duration = now > one.begin ? now - one.begin : 0;
    thread.record(RawSpan::pack(one.begin, duration, 0, one.step, one.path, one.depth, one.flags),
                  {one.event, event});
  }
  // Only now: until then the harvester found the events here, and now it finds them in the ring.
  const std::lock_guard guard(stack.lock);
  if (opened.size() > keep) opened.resize(keep);
}

bool has_event(const std::vector<ModuleStack::Open>& opened, size_t from) {
  return std::any_of(opened.begin() + static_cast<ptrdiff_t>(std::min(from, opened.size())),
                     opened.end(), [](const ModuleStack::Open& one) { return one.event != 0; });
}

void push(ModuleStack& stack, std::vector<ModuleStack::Open>& opened,
          const ModuleStack::Open& one) {
  const std::lock_guard guard(stack.lock);
  opened.push_back(one);
}

/// Throws std::bad_alloc.
uint64_t begin_call(const WatchedModule& module, bool recomputes) {
  uint32_t epoch;
  ThreadState* thread = recording_thread_now(epoch);
  if (thread == nullptr) return 0;
  ModuleStack& stack = stack_of(*thread, epoch);
  const Place place = place_of_call(*thread, epoch, recomputes);
  const uint32_t name = recomputes ? module.recompute : module.forward;
  const uint32_t path = thread->path_under(place.path, name);
  stack.next_serial += stack.next_serial == 0xFFFFFFFFu ? 2 : 1;
  const uint32_t serial = stack.next_serial;
  // Last, as with a phase; the record of the event lies within the span.
  const uint64_t now = read_ticks();
  const cuda::EventRef event = thread->module_boundary(now, place.step, /*ends=*/false);
  // While the driver was at it another thread may have ended the recording.
  if (PIG_UNLIKELY(active_epoch.load(std::memory_order_relaxed) != epoch)) return 0;
  push(stack, stack.calls,
       {&module, now, event, path, place.step, serial, static_cast<uint16_t>(stack.calls.size()),
        place.flags});
  return static_cast<uint64_t>(epoch) << 32 | serial;
}

void end_call(uint64_t token) {
  const uint64_t now = read_ticks();
  uint32_t epoch;
  ThreadState* thread = recording_thread_now(epoch);
  if (thread == nullptr || epoch != token >> 32) return;
  ModuleStack& stack = stack_of(*thread, epoch);
  size_t at = stack.calls.size();
  while (at > 0 && stack.calls[at - 1].serial != static_cast<uint32_t>(token)) --at;
  if (at-- == 0) return;
  if (PIG_UNLIKELY(at + 1 != stack.calls.size())) {
    // Their ends did not come: greenlets took turns.
    const std::lock_guard guard(stack.lock);
    stack.calls.resize(at + 1);
  }
  cuda::EventRef event = 0;
  if (stack.calls[at].event != 0) {
    event = thread->module_boundary(now, stack.calls[at].step, /*ends=*/true);
    if (PIG_UNLIKELY(active_epoch.load(std::memory_order_relaxed) != epoch)) return;
  }
  close_above(*thread, stack, stack.calls, at, now, event);
}

/// The position moves: all above `keep` is left, then those of `chain` from `keep` on are entered.
void move(ThreadState& thread, ModuleStack& stack, uint32_t epoch, const Place& place, size_t keep,
          const WatchedModule* const* chain, size_t depth, uint64_t now) {
  std::vector<ModuleStack::Open>& position = stack.position;
  const cuda::EventRef event =
      thread.module_boundary(now, place.step, /*ends=*/has_event(position, keep));
  if (PIG_UNLIKELY(active_epoch.load(std::memory_order_relaxed) != epoch)) return;
  close_above(thread, stack, position, keep, now, event);
  for (size_t i = keep; i < depth; ++i)
    push(stack, position,
         {chain[i], now, event, thread.path_under(place.path, chain[i]->backward), place.step, 0,
          static_cast<uint16_t>(i), place.flags});
}

/// A pass of the calling thread's, and the position in it. False where there is none.
bool find_position(uint32_t epoch, ThreadState& thread, ModuleStack& stack, Place& place) {
  const std::lock_guard guard(passes->mutex);
  Pass* pass = pass_on(thread, epoch);
  if (pass == nullptr) return false;
  place = pass->place;
  if (pass->caller == &thread) return true;
  if (stack.pass != pass->number) {
    pass->visitors.push_back(&thread);
    const std::lock_guard stack_guard(stack.lock);
    stack.pass = pass->number;
    stack.position.clear();  // what another pass has left was taken by its end
    stack.floor = 0;
  }
  return true;
}

template <typename Function>
void with_position(Function function) noexcept {
  const uint64_t now = read_ticks();
  uint32_t epoch;
  ThreadState* thread = recording_thread_now(epoch);
  if (thread == nullptr) return;
  try {
    ModuleStack& stack = stack_of(*thread, epoch);
    Place place;
    if (find_position(epoch, *thread, stack, place)) function(*thread, stack, epoch, place, now);
  } catch (const std::bad_alloc&) {
    Recorder::instance().drops().add(Drop::kNoMemory);
  }
}

/// The position becomes a module's, under those around it.
void enter(ThreadState& thread, ModuleStack& stack, uint32_t epoch, const Place& place,
           const WatchedModule& module, uint64_t now) {
  std::array<const WatchedModule*, kDeepest> chain;
  const size_t depth = size_t{module.depth} + 1;
  const WatchedModule* link = &module;
  for (size_t i = depth; i > 0; --i, link = link->parent) chain[i - 1] = link;
  const std::vector<ModuleStack::Open>& position = stack.position;
  size_t shared = 0;
  while (shared < std::min(depth, position.size()) && position[shared].module == chain[shared])
    ++shared;
  if (shared == depth) {
    if (shared <= stack.floor) return;  // the pass around this one is in it
    --shared;                           // it was called twice, the one after the other
  }
  move(thread, stack, epoch, place, std::max(shared, stack.floor), chain.data(), depth, now);
}

/// A call that repeats an earlier one shows where the pass is, if no mark has: the output of a
/// checkpoint that runs a pass of its own has a node that no module has made.
void enter_to_recompute(const WatchedModule& module) noexcept {
  with_position([&module](ThreadState& thread, ModuleStack& stack, uint32_t epoch,
                          const Place& place, uint64_t now) {
    const bool is_inside =
        std::any_of(stack.position.begin(), stack.position.end(),
                    [&module](const ModuleStack::Open& one) { return one.module == &module; });
    if (!is_inside && stack.calls.empty()) enter(thread, stack, epoch, place, module, now);
  });
}

}  // namespace

uint64_t begin_module(const WatchedModule& module, bool recomputes) noexcept {
  if (PIG_UNLIKELY(recomputes)) enter_to_recompute(module);
  try {
    return begin_call(module, recomputes);
  } catch (const std::bad_alloc&) {
    Recorder::instance().drops().add(Drop::kNoMemory);
    return 0;
  }
}

void end_module(uint64_t token) noexcept {
  if (token == 0) return;
  try {
    end_call(token);
  } catch (const std::bad_alloc&) {
    Recorder::instance().drops().add(Drop::kNoMemory);
  }
}

uint64_t begin_backward_pass() noexcept {
  uint32_t epoch;
  ThreadState* thread = recording_thread_now(epoch);
  if (thread == nullptr) return 0;
  try {
    ModuleStack& stack = stack_of(*thread, epoch);
    const std::lock_guard guard(passes->mutex);
    // A node's own pass on a thread of autograd's hangs where that thread's pass hangs.
    const Pass* around = thread->innermost_path() == kNoPath ? pass_on(*thread, epoch) : nullptr;
    const Place place = around != nullptr ? around->place : place_here(*thread);
    passes->all.push_back({++passes->last, epoch, thread, place, stack.floor, {}});
    pass_count.store(static_cast<uint32_t>(passes->all.size()), std::memory_order_relaxed);
    stack.floor = stack.position.size();
    return passes->last;
  } catch (const std::bad_alloc&) {
    Recorder::instance().drops().add(Drop::kNoMemory);
    return 0;
  }
}

void end_backward_pass(uint64_t number) noexcept {
  if (number == 0) return;
  const uint64_t now = read_ticks();
  uint32_t epoch;
  ThreadState* thread = recording_thread_now(epoch);
  try {
    Pass pass{};
    {
      const std::lock_guard guard(passes->mutex);
      const auto found = std::find_if(passes->all.begin(), passes->all.end(),
                                      [number](const Pass& one) { return one.number == number; });
      if (found == passes->all.end()) return;
      pass = std::move(*found);
      passes->all.erase(found);
      pass_count.store(static_cast<uint32_t>(passes->all.size()), std::memory_order_relaxed);
    }
    if (thread == nullptr || pass.epoch != epoch || pass.caller != thread) return;
    ModuleStack& stack = stack_of(*thread, epoch);
    move(*thread, stack, epoch, pass.place, stack.floor, nullptr, 0, now);
    stack.floor = pass.floor;
    for (ThreadState* visitor : pass.visitors) {
      // The pass is over, so its owner is not there.
      ModuleStack* left = visitor->modules();
      if (left == nullptr || left->pass != number || left->position.empty()) continue;
      const bool ends = has_event(left->position, 0);
      const cuda::EventRef event =
          ends ? thread->module_boundary(now, pass.place.step, /*ends=*/true) : 0;
      if (PIG_UNLIKELY(active_epoch.load(std::memory_order_relaxed) != epoch)) return;
      close_above(*thread, *left, left->position, 0, now, event);
    }
  } catch (const std::bad_alloc&) {
    Recorder::instance().drops().add(Drop::kNoMemory);
  }
}

bool is_any_backward_pass() noexcept { return pass_count.load(std::memory_order_relaxed) != 0; }

bool is_in_backward_pass() noexcept {
  if (!is_any_backward_pass()) return false;
  const std::lock_guard guard(passes->mutex);
  return std::any_of(passes->all.begin(), passes->all.end(),
                     [](const Pass& pass) { return pass.caller == this_thread; });
}

void enter_in_backward(const WatchedModule& module) noexcept {
  with_position([&module](ThreadState& thread, ModuleStack& stack, uint32_t epoch,
                          const Place& place,
                          uint64_t now) { enter(thread, stack, epoch, place, module, now); });
}

void leave_in_backward(const WatchedModule& module) noexcept {
  with_position([&module](ThreadState& thread, ModuleStack& stack, uint32_t epoch,
                          const Place& place, uint64_t now) {
    const std::vector<ModuleStack::Open>& position = stack.position;
    for (size_t i = position.size(); i > stack.floor; --i) {
      if (position[i - 1].module != &module) continue;
      move(thread, stack, epoch, place, i - 1, nullptr, 0, now);
      return;
    }
  });
}

void forget_backward_passes_in_child() noexcept {
  passes = new Passes;  // the lock may have been held by a thread that is not here
  pass_count.store(0, std::memory_order_relaxed);
}

}  // namespace pig
