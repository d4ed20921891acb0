// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "base/spin_lock.h"
#include "cuda/event_ring.h"

namespace pig {

/// A module whose calls are timed. Lives for ever.
struct WatchedModule {
  uint32_t forward;  ///< ids of its name, by what is done
  uint32_t backward;
  uint32_t recompute;
  uint16_t depth = 0;                     ///< how many of those around it are watched
  const WatchedModule* parent = nullptr;  ///< the innermost of them
};

/// The modules that a thread is in: those it has called and that have not returned, and those that
/// a backward pass has reached there. They are no frames, because a phase inside a module keeps its
/// path, and a backward pass may end on another thread than the one that it ran on.
///
/// Only the owner changes it, but for the caller of a backward pass, which takes what is left. The
/// harvester looks for events.
class ModuleStack {
 public:
  struct Open {
    const WatchedModule* module;
    uint64_t begin;
    cuda::EventRef event;
    uint32_t path;
    uint32_t step;
    uint32_t serial;
    uint16_t depth;
    uint8_t flags;
  };

  SpinLock lock;
  uint32_t epoch = 0;          ///< of the recording that all this belongs to
  uint32_t next_serial = 1;    ///< tells calls apart; 0 is none
  std::vector<Open> calls;     ///< outermost first
  std::vector<Open> position;  ///< of the backward pass, likewise
  size_t floor = 0;            ///< what a backward pass within a node's own leaves alone
  uint64_t pass = 0;           ///< that the position belongs to

  /// Appends the events of all that is open.
  void copy_events(std::vector<cuda::EventRef>& events) {
    const std::lock_guard guard(lock);
    for (const std::vector<Open>* opened : {&calls, &position})
      for (const Open& one : *opened)
        if (one.event != 0) events.push_back(one.event);
  }
};

}  // namespace pig
