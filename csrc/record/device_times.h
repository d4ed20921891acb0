// SPDX-License-Identifier: Apache-2.0
//
// Joins spans with the times of their events.
//
// A span is drained from its ring as soon as it has ended on the host; its device may reach its
// events much later. Until then it waits here. The time of an event that is known is kept for as
// long as a span may still refer to it: a phase around the whole loop began with an event whose
// place in the ring has been used again many times.
//
// Each harvest goes: `begin`, `pin` (what threads have in hand, and what open frames refer to),
// `add` (the drained spans), `drain` (with the times that became known). In this order an event
// that a span will need is never forgotten: a thread had it in hand, the span was open when frames
// were looked at, or it is in what was drained afterwards, or it began later. What began later
// refers to one of the newest events: as many as the ring has are kept in any case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "record/part.h"
#include "record/span_statistics.h"

namespace pig {

class DeviceTimes final : public Part {
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

  explicit DeviceTimes(SpanStatistics& statistics) : statistics_(statistics) {}

  /// Before any ring is drained.
  void begin();
  void pin(cuda::EventRef event) {
    if (event != 0) pinned_.insert(event);
  }
  void add(const Waiting& span);

  void reset(const Session& session) override;
  bool is_waiting() const override { return !waiting_.empty(); }
  void drain(Harvest& harvest) override;

 private:
  using Time = cuda::EventTimeline::Time;

  void resolve(RunLog& log, bool final);
  const Time* time_of(cuda::EventRef event) const {
    const auto found = known_.find(event);
    return found != known_.end() ? &found->second : nullptr;
  }
  /// Why a span whose events have these times has no device time.
  static std::optional<Drop> obstacle(const Waiting& span, const Time& begin, const Time& end);
  /// kNoStream where the log can tell no more of them apart.
  uint64_t stream_number(const cuda::EventTimeline& timeline, const Time& time, RunLog& log);
  void forget_unneeded();
  void look_for_driver(const Harvest& harvest);

  SpanStatistics& statistics_;
  DropCounters* drops_ = nullptr;
  std::vector<uint64_t> heads_;  ///< by timeline: the newest event when this harvest began
  std::unordered_set<cuda::EventRef> pinned_;
  std::unordered_map<cuda::EventRef, Time> known_;
  std::vector<Waiting> waiting_;
  std::map<uint32_t, uint64_t> given_up_;  ///< by path, at the end
  /// By timeline, and handle or number of the stream: its number in the run.
  std::map<std::pair<uint8_t, uint64_t>, uint64_t> streams_;
  int64_t driver_due_ns_ = 0;  ///< when it is looked for again
  bool driver_is_loaded_ = false;
};

}  // namespace pig
