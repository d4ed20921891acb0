// SPDX-License-Identifier: Apache-2.0
#include "record/thread_registry.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/threads.h"
#include "base/throwing.h"

namespace pig {
namespace {

/// What the calling thread gives back as it ends.
struct OwnState {
  ThreadRegistry* registry = nullptr;
  ThreadState* state = nullptr;

  static void give_back(void* own) {
    auto& [registry, state] = *static_cast<OwnState*>(own);
    if (state == nullptr) return;
    forget_this_thread();  // what records later on must not share it with another thread
    registry->thread_ends(std::exchange(state, nullptr));
  }
};
thread_local OwnState own_state;
const ThreadEnd thread_end(OwnState::give_back);

}  // namespace

void ThreadRegistry::reset() {
  const std::lock_guard lock(mutex_);
  for (ThreadState* state : states_)
    if (state->finished.load(std::memory_order_relaxed)) free_.push_back(state);
  states_.clear();
  infos_.clear();
}

ThreadState* ThreadRegistry::attach(const ThreadState::Context& context, uint32_t epoch,
                                    ThreadInfo info) {
  const std::lock_guard lock(mutex_);
  ThreadState* const state = state_of_this_thread();
  // All that may fail for lack of memory comes first, as it is tried again at the next phase.
  state->get_buffers();
  make_room(states_, states_.size() + 1);
  if (infos_.size() < kMaxThreads) {
    infos_.push_back(infos_.size() + 1 < kMaxThreads ? std::move(info)
                                                     : ThreadInfo{0, "(other threads)"});
  } else {
    context.drops->add(Drop::kThreads);
  }
  state->reset(context, epoch, static_cast<uint32_t>(infos_.size() - 1));
  states_.push_back(state);
  ++changes_;
  this_thread = state;
  return state;
}

ThreadState* ThreadRegistry::state_of_this_thread() {
  if (own_state.state != nullptr) return own_state.state;
  if (!thread_end.set(&own_state)) throw std::bad_alloc();
  if (free_.empty()) {
    make_room(free_, made_ + 1);  // a thread that ends must not fail for lack of memory
    free_.push_back(new ThreadState);
    ++made_;
  }
  own_state = {this, free_.back()};
  free_.pop_back();
  return own_state.state;
}

std::vector<ThreadState*> ThreadRegistry::states() const {
  const std::lock_guard lock(mutex_);
  return states_;
}

uint64_t ThreadRegistry::activity() const {
  const std::lock_guard lock(mutex_);
  uint64_t sum = retired_activity_ + (changes_ << 32);
  for (const ThreadState* state : states_) sum += state->activity();
  return sum;
}

std::vector<ThreadInfo> ThreadRegistry::infos_since(size_t from) const {
  const std::lock_guard lock(mutex_);
  return {infos_.begin() + static_cast<std::ptrdiff_t>(from), infos_.end()};
}

void ThreadRegistry::run_requests() const {
  const std::lock_guard lock(mutex_);
  for (ThreadState* state : states_) state->run_requests();
}

ThreadState* ThreadRegistry::find(uint32_t serial) const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(states_.begin(), states_.end(),
                   [serial](const ThreadState* state) { return state->serial() == serial; });
  return found == states_.end() ? nullptr : *found;
}

ThreadState* ThreadRegistry::find_native(uint64_t native_id) const {
  size_t serial = 0;
  {
    const std::lock_guard lock(mutex_);
    for (serial = infos_.size(); serial > 0 && infos_[serial - 1].native_id != native_id;) --serial;
  }
  return serial == 0 ? nullptr : find(static_cast<uint32_t>(serial - 1));
}

bool ThreadRegistry::request_end(const ThreadState& here, uint32_t phase, uintptr_t block,
                                 uint64_t now) const {
  const std::lock_guard lock(mutex_);
  for (ThreadState* state : states_) {
    const uint32_t serial = state != &here ? state->find_open(phase, block) : 0;
    if (serial == 0) continue;
    state->request_end(serial, now);
    return true;
  }
  return false;
}

void ThreadRegistry::retire(ThreadState* state) {
  const std::lock_guard lock(mutex_);
  std::erase(states_, state);
  retired_activity_ += state->activity();
  free_.push_back(state);
}

void ThreadRegistry::thread_ends(ThreadState* state) {
  const std::lock_guard lock(mutex_);
  if (std::find(states_.begin(), states_.end(), state) != states_.end()) {
    state->finished.store(true, std::memory_order_release);
    ++changes_;
  } else {
    free_.push_back(state);
  }
}

void ThreadRegistry::forget_this_thread_in_child() {
  own_state.state = nullptr;
  forget_this_thread();
}

}  // namespace pig
