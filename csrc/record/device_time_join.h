// SPDX-License-Identifier: Apache-2.0
//
// Joins spans with the times of their events.
//
// A span is drained from its ring as soon as it has ended on the host; its device may reach its
// events much later. Until then it waits here. The time of an event that is known is kept for as
// long as a span may still refer to it: a phase around the whole loop began with an event whose
// place in the ring has been used again many times.
//
// Each harvest goes: `begin`, `pin` (what open frames refer to), `add` (the drained spans), `know`
// (times that became known), `settle`. In this order an event that a span will need is never
// forgotten: the span was open when frames were looked at, or it is in what was drained afterwards,
// or it began later. What began later, or was just beginning, refers to one of the newest events:
// as many as the ring has are kept in any case.
//
// Used by the holder of the harvest lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/drops.h"
#include "cuda/device_timing.h"
#include "hot/span.h"
#include "log/items.h"

namespace pig {

class DeviceTimeJoin {
 public:
  /// A drained span that was timed on the device.
  struct Waiting {
    uint64_t index;  ///< among all spans of the run
    cuda::EventRef begin;
    cuda::EventRef end;
    uint32_t step;
    uint32_t path;
    uint8_t flags;
  };
  struct Settled {
    Waiting span;
    DeviceTimeItem item;
  };
  struct Settlement {
    std::vector<StreamItem> streams;  ///< new ones, which the items refer to
    std::vector<Settled> spans;
  };

  /// A recording begins.
  void reset(DropCounters* drops);

  void begin(const cuda::DeviceTiming& timing);
  void pin(cuda::EventRef event) {
    if (event != 0) pinned_.insert(event);
  }
  void add(const Waiting& span);
  void know(const cuda::DeviceTiming::Known& known);
  /// The spans whose times are known now. `final`: those that still wait are given up.
  Settlement settle(const cuda::DeviceTiming& timing, bool final);

  bool waiting() const { return !waiting_.empty(); }
  /// How many spans wait, by path.
  std::map<uint32_t, uint64_t> waiting_by_path() const;

 private:
  static constexpr size_t kMaxWaiting = 1u << 16;

  uint32_t stream_number(const cuda::EventTimeline& timeline, uint32_t stream,
                         std::vector<StreamItem>& added);
  void forget_unneeded();

  DropCounters* drops_ = nullptr;
  std::vector<uint64_t> heads_;  ///< by timeline: the newest event when this harvest began
  std::unordered_set<cuda::EventRef> pinned_;
  struct Time {
    int64_t device_ns;
    uint32_t stream;
  };
  std::unordered_map<cuda::EventRef, Time> known_;
  std::vector<Waiting> waiting_;
  std::map<uint64_t, uint32_t> streams_;  ///< timeline << 32 | stream: number in the run
};

}  // namespace pig
