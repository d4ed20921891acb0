// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/throwing.h"
#include "hot/span.h"

namespace pig {

/// When a thread is looked at again. It knows the time only by being told.
class SamplePace {
 public:
  static constexpr int64_t kIntervalNs = 20'000'000;
  static constexpr int64_t kLongestIntervalNs = 1'000'000'000;
  /// An interval is up to so much longer, differently each time: samples that kept pace with the
  /// steps would always see the same.
  static constexpr int64_t kJitterNs = 3'000'000;
  /// None is taken while those before have stopped the thread for more than one part of the time in
  /// so many. The last one comes on top, however long it was.
  static constexpr int64_t kMostStopped = 1000;
  /// So many looks at the beginning of the steps go ahead of both limits, so that something is
  /// known of a run of a second, too: some milliseconds, once.
  static constexpr uint64_t kAhead = 50;
  static constexpr int64_t kStoppedAheadNs = 1'000'000;

  /// `most_own`: the looking thread takes one part of a processor's time in so many at most, the
  /// most of which goes to waking it. Where that takes long, the intervals are longer.
  SamplePace(int64_t now_ns, int64_t most_own) : begin_ns_(now_ns), most_own_(most_own) {
    looked(now_ns, 0);
  }

  /// `stopped_ns`: for how long all samples so far have stopped the thread.
  int64_t due_ns(int64_t stopped_ns) const {
    return std::max(due_ns_, begin_ns_ + kMostStopped * (stopped_ns - free_ns_));
  }

  /// Steps begin: what the start of the program has cost, with its deep stacks, says nothing of
  /// them. The next sample stands for no time before.
  void steps_begin(int64_t now_ns, int64_t stopped_ns, int64_t own_ns) {
    begin_ns_ = steps_begin_ns_ = now_ns;
    free_ns_ = stopped_ns + kStoppedAheadNs;
    own_before_ns_ = own_ns;
    looks_before_ = looks_;
    ahead_ = kAhead;
    due_ns_ = std::min(due_ns_, now_ns + kIntervalNs);
  }

  /// Until when nobody looked for the sake of that limit, or what was seen is no step's; 0 where
  /// that is not why.
  int64_t rested_until_ns(int64_t stopped_ns) const {
    if (steps_begin_ns_ > 0) return steps_begin_ns_;
    const int64_t due_ns = this->due_ns(stopped_ns);
    return due_ns > due_ns_ ? due_ns - interval_ns_ : 0;
  }

  /// Somebody has looked, whether or not a sample could be taken. `own_ns`: the processor time that
  /// all looks have taken the looking thread.
  void looked(int64_t now_ns, int64_t own_ns) {
    constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15u;
    steps_begin_ns_ = 0;
    const auto looks = static_cast<int64_t>(looks_ - looks_before_);
    const int64_t own_of_each_ns = (own_ns - own_before_ns_) / std::max<int64_t>(looks, 1);
    interval_ns_ = std::clamp(own_of_each_ns * most_own_, kIntervalNs, kLongestIntervalNs);
    if (ahead_ > 0) {
      --ahead_;
      interval_ns_ = kIntervalNs;
    }
    const uint64_t of_jitter = (++looks_ * kGoldenRatio) >> 32;
    due_ns_ = now_ns + interval_ns_ + static_cast<int64_t>(of_jitter * kJitterNs >> 32);
  }

 private:
  int64_t begin_ns_;
  int64_t most_own_;
  int64_t interval_ns_ = kIntervalNs;
  int64_t due_ns_ = 0;
  uint64_t looks_ = 0;

  // Of the beginning of the steps: what was before it does not count.
  int64_t steps_begin_ns_ = 0;  ///< until the first look behind it
  int64_t free_ns_ = 0;         ///< and this, that goes ahead
  int64_t own_before_ns_ = 0;
  uint64_t looks_before_ = 0;
  uint64_t ahead_ = 0;
};

/// Samples of one thread's stack: the tree of where they were. Guarded by whoever has it.
///
/// A sample stands for all the time since the one before. So those that come late, as where a call
/// kept the thread from being looked at, take nothing from the others. Where nobody wanted to look,
/// the time is nobody's.
class StackSamples {
 public:
  static constexpr size_t kMostNodes = 16384;
  /// The parents of the nodes that no other is around: this plus a scope. Their places are paths.
  static constexpr uint32_t kScopes = 0xFFFFFFF0u;

  /// A place in a call, or the path of a phase, inside of another one. Its time is its own: that
  /// of a path is the time of the samples whose stack was not known, or had no room.
  struct Node {
    uint32_t parent;
    uint32_t place;
    uint32_t samples = 0;
    int64_t time_ns = 0;
  };

  void begin(int64_t now_ns) {
    *this = {};
    begin_ns_ = until_ns_ = now_ns;
  }

  /// The thread was in these places at `now_ns`, the innermost first. Throws std::bad_alloc, and
  /// then the time is that of the next sample.
  void add(Scope scope, uint32_t path, std::span<const uint32_t> places, int64_t now_ns) {
    const uint32_t root = child(kScopes + static_cast<uint32_t>(scope), path);
    uint32_t node = root;
    for (auto place = places.rbegin(); place != places.rend() && node != kNone; ++place)
      node = child(node, *place);
    if (node == kNone) node = root;
    const int64_t time_ns = skip(now_ns);
    if (node == kNone) {
      lost_ns_ += time_ns;
      return;
    }
    ++nodes_[node].samples;
    nodes_[node].time_ns += time_ns;
  }

  /// Nobody looked up to then. Does nothing where that is before the last sample.
  void rest(int64_t until_ns) { rested_ns_ += skip(until_ns); }

  const std::vector<Node>& nodes() const { return nodes_; }
  int64_t begin_ns() const { return begin_ns_; }
  int64_t until_ns() const { return until_ns_; }
  /// Of samples that had no room, not even for their path.
  int64_t lost_ns() const { return lost_ns_; }
  /// For which no sample stands.
  int64_t rested_ns() const { return rested_ns_; }

 private:
  static constexpr uint32_t kNone = 0xFFFFFFEFu;

  int64_t skip(int64_t now_ns) {
    const int64_t time_ns = std::max<int64_t>(now_ns - until_ns_, 0);
    until_ns_ += time_ns;
    return time_ns;
  }

  uint32_t child(uint32_t parent, uint32_t place) {
    const uint64_t key = static_cast<uint64_t>(parent) << 32 | place;
    const auto found = children_.find(key);
    if (found != children_.end()) return found->second;
    if (nodes_.size() == kMostNodes) return kNone;
    make_room(nodes_, nodes_.size() + 1);  // a child without its node would be another's
    const auto number = static_cast<uint32_t>(nodes_.size());
    children_.emplace(key, number);
    nodes_.push_back({parent, place});
    return number;
  }

  int64_t begin_ns_ = 0;
  int64_t until_ns_ = 0;  ///< samples stand for the time up to then
  int64_t lost_ns_ = 0;
  int64_t rested_ns_ = 0;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, uint32_t> children_;
};

}  // namespace pig
