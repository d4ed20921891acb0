// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace pig {

/// Notices that no step begins or ends for far longer than steps take. It knows the time only by
/// being told, at each harvest: those come about once a second where nothing happens.
class Watchdog {
 public:
  static constexpr uint64_t kFewestSteps = 10;
  static constexpr int64_t kStepTimes = 10;
  /// Of the time between two looks so much counts: where it was longer, the whole process, or the
  /// machine, stood still.
  static constexpr int64_t kMostBetweenLooksNs = 5'000'000'000;

  /// What has happened so far.
  struct Progress {
    uint64_t step_changes;  ///< how often a step began, ended or was given an item
    uint64_t spans;
    int64_t collective_ns;  ///< when the newest collective that is known was created
    bool in_step;
  };
  struct StepTimes {
    uint64_t count;  ///< of the steps that have ended
    int64_t p99_ns;  ///< 99 % of them took at most this
  };
  struct Stall {
    int64_t since_ns;
    int64_t noticed_ns;
    int64_t limit_ns;
    int64_t p99_ns;
  };
  enum class Change { kNone, kBegan, kEnded };

  /// `limit_ns` is the least time; 0: nothing is watched.
  void reset(int64_t limit_ns) {
    *this = {};
    limit_ns_ = limit_ns;
  }

  /// Has a look at the time `now_ns`. `step_times` is asked once the time without progress has
  /// reached the least limit.
  template <typename Times>
  Change look(int64_t now_ns, const Progress& progress, Times step_times) {
    if (limit_ns_ == 0) return Change::kNone;
    const int64_t since_look_ns = std::clamp<int64_t>(now_ns - looked_ns_, 0, kMostBetweenLooksNs);
    looked_ns_ = now_ns;
    // Between steps a program may validate or save for long, and then has phases.
    const bool has_moved = progress.step_changes != last_.step_changes ||
                           progress.in_step != last_.in_step ||
                           (!progress.in_step && progress.spans != last_.spans);
    last_ = progress;
    if (has_moved) {
      since_ns_ = now_ns;
      return end();
    }
    quiet_ns_ += since_look_ns;
    if (progress.collective_ns > since_ns_) {
      // It is heard of late: what was created before that is no news.
      since_ns_ = progress.collective_ns;
      quiet_ns_ = std::min(quiet_ns_, std::max<int64_t>(0, now_ns - since_ns_));
      if (is_stalled_ && since_ns_ > stall_.noticed_ns) return end();
    }
    if (is_stalled_ || quiet_ns_ < limit_ns_) return Change::kNone;
    const StepTimes times = step_times();
    const int64_t limit_ns =
        std::max({limit_ns_, kStepTimes * times.p99_ns, 2 * longest_ns_[progress.in_step]});
    if (times.count < kFewestSteps || quiet_ns_ < limit_ns) return Change::kNone;
    is_stalled_ = true;
    stalled_in_step_ = progress.in_step;
    stall_ = {since_ns_, now_ns, limit_ns, times.p99_ns};
    return Change::kBegan;
  }

  /// The one that was noticed last.
  const Stall& stall() const { return stall_; }

 private:
  Change end() {
    const int64_t quiet_ns = std::exchange(quiet_ns_, 0);
    if (!std::exchange(is_stalled_, false)) return Change::kNone;
    // What went on by itself is normal here: then only what lasts twice as long is worth a word.
    int64_t& longest_ns = longest_ns_[stalled_in_step_];
    longest_ns = std::max(longest_ns, quiet_ns);
    return Change::kEnded;
  }

  int64_t limit_ns_ = 0;
  Progress last_{};
  int64_t looked_ns_ = 0;
  int64_t since_ns_ = 0;
  int64_t quiet_ns_ = 0;
  bool is_stalled_ = false;
  bool stalled_in_step_ = false;
  Stall stall_{};
  std::array<int64_t, 2> longest_ns_{};  ///< that ended: between steps, and inside of one
};

}  // namespace pig
