// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/event_ring.h"
#include "hot/frame.h"

namespace pig {

/// A module whose calls are timed. Lives forever.
struct WatchedModule {
  uint32_t forward;  ///< ids of its name, by what is done
  uint32_t backward;
  uint32_t recompute;
  uint16_t depth = 0;                     ///< how many of those around it are watched
  const WatchedModule* parent = nullptr;  ///< the innermost of them
};

/// What the spans of modules hang under.
struct ModulePlace {
  uint32_t path;
  uint32_t step;
  uint8_t flags;
};

/// A module that was entered and not left yet.
struct OpenModule {
  const WatchedModule* module;
  uint64_t begin;
  cuda::EventRef event;  ///< recorded at the begin, or 0
  uint32_t path;
  uint32_t step;
  uint32_t serial;
  uint8_t flags;
};

/// Open modules, outermost first. Changed by one thread at a time; the harvester, which has no lock
/// in common with it, finds their events.
class OpenModules {
 public:
  static constexpr size_t kMost = 128;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const OpenModule& operator[](size_t i) const { return open_[i]; }

  /// False where there is no room.
  bool push(const OpenModule& one) {
    if (size_ == kMost) return false;
    open_[size_] = one;
    publish(events_[size_], one.event);
    ++size_;
    return true;
  }

  /// Takes away all above `keep`, whose spans are in a ring by now.
  void truncate(size_t keep) {
    while (size_ > keep) publish(events_[--size_], 0);
  }

  void copy_events(std::vector<cuda::EventRef>& events) const {
    for (const cuda::EventRef& slot : events_)
      if (const cuda::EventRef event = observe(slot); event != 0) events.push_back(event);
  }

 private:
  size_t size_ = 0;
  std::array<OpenModule, kMost> open_;
  std::array<cuda::EventRef, kMost> events_{};
};

/// The modules that a thread is in: those it has called and that have not returned, and those that
/// a backward pass has reached there. They are no frames, because a phase inside a module keeps its
/// path, and a backward pass may end on another thread than the one that it ran on.
struct ModuleStack {
  uint32_t epoch = 0;        ///< of the recording that all this belongs to
  uint32_t next_serial = 1;  ///< tells calls apart; 0 is none
  OpenModules calls;
  OpenModules position;  ///< of the backward pass
  size_t floor = 0;      ///< what a backward pass within a node's own leaves alone

  // The backward pass that the position belongs to; 0 for none.
  uint64_t pass = 0;
  uint64_t passes_seen = 0;  ///< how many had begun or ended when it was found
  ModulePlace place{};

  void copy_events(std::vector<cuda::EventRef>& events) const {
    calls.copy_events(events);
    position.copy_events(events);
  }
};

}  // namespace pig
