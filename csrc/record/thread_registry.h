// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "hot/thread_state.h"
#include "log/items.h"

namespace pig {

/// The states of all threads that record, and who they are.
///
/// A state belongs to its thread until the thread ends; then the harvester takes what is left in it
/// and it serves another thread. So many short-lived threads take no more memory than live at one
/// time.
class ThreadRegistry {
 public:
  /// Forgets the threads of the last recording. Their states stay with them.
  void reset();

  /// Makes the calling thread's state ready for a recording. Throws std::bad_alloc.
  ThreadState* attach(const ThreadState::Context& context, uint32_t epoch, ThreadInfo info);

  /// The states of this recording's threads that have not been retired.
  std::vector<ThreadState*> states() const;
  /// The sum of theirs (ThreadState::activity). It also changes when one begins or ends.
  uint64_t activity() const;
  std::vector<ThreadInfo> infos_since(size_t from) const;
  /// Closes what threads were asked to close, once none of them records any more.
  void run_requests() const;
  /// Of a thread of this recording, or nullptr.
  ThreadState* find(uint32_t serial) const;
  /// By the system's number of the thread, the newest with it.
  ThreadState* find_native(uint64_t native_id) const;
  /// Asks another thread to end the phase that the block has begun there
  /// (ThreadState::request_end). False where there is none.
  bool request_end(const ThreadState& here, uint32_t phase, uintptr_t block, uint64_t now) const;

  /// The thread of a state of this recording has ended and the state is drained: another thread may
  /// have it.
  void retire(ThreadState* state);

  /// The calling thread ends. Called with the state it recorded with.
  void thread_ends(ThreadState* state);

  /// In a forked child: the calling thread's state stays behind with the parent's registry.
  static void forget_this_thread_in_child();

 private:
  ThreadState* state_of_this_thread();  ///< throws std::bad_alloc

  mutable std::mutex mutex_;
  std::vector<ThreadState*> states_;
  std::vector<ThreadInfo> infos_;
  std::vector<ThreadState*> free_;
  size_t made_ = 0;                ///< states, of which `free_` has room for all
  uint64_t retired_activity_ = 0;  ///< of those that were retired
  uint64_t changes_ = 0;           ///< how often one began or ended
};

}  // namespace pig
