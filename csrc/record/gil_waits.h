// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>

#include "hot/span.h"
#include "record/cause_log.h"

namespace pig {

/// Where a thread sleeps that waits for another one (a futex), of what the kernel says in its file
/// `syscall`; 0 where it does not.
inline uint64_t sleeping_address(const char* text) {
  char* end = nullptr;
  const bool is_futex = std::strtol(text, &end, 10) == SYS_futex && end != text;
  return is_futex ? std::strtoull(end, nullptr, 16) : 0;
}

/// Whether two such addresses are those of one condition variable, which has two of them.
inline bool is_near(uint64_t one, uint64_t other) {
  return one != 0 && other != 0 && std::max(one, other) - std::min(one, other) <= 8;
}

/// The threads of the process, by the system's numbers, and what they have run so far.
struct ThreadTimes {
  static constexpr size_t kMost = 64;

  struct One {
    uint32_t thread;
    int64_t ran_ns;
  };
  std::array<One, kMost> threads;
  size_t count = 0;

  /// Which of the others has run since an earlier reading, for more than all the rest of them, and
  /// for a tenth of the time at least: others may want its processor. 0 where there is none.
  uint32_t busiest_since(const ThreadTimes& before, uint32_t but_not, int64_t time_ns) const {
    One most{0, time_ns / 10};
    int64_t all_ns = 0;
    for (size_t i = 0; i < count; ++i) {
      const One& now = threads[i];
      const auto end = before.threads.begin() + static_cast<ptrdiff_t>(before.count);
      const auto then = std::find_if(before.threads.begin(), end,
                                     [&](const One& one) { return one.thread == now.thread; });
      const int64_t ran_ns = now.ran_ns - (then != end ? then->ran_ns : 0);
      if (now.thread == but_not) continue;
      all_ns += ran_ns;
      if (ran_ns > most.ran_ns) most = {now.thread, ran_ns};
    }
    return most.ran_ns > all_ns / 2 ? most.thread : 0;
  }
};

/// What a thread is seen to do.
enum class Seen {
  waiting_for_gil,
  ready,  ///< it runs, or is about to
  elsewhere,
};

/// A step that is open.
struct StepAtWork {
  uint32_t serial = kNoStep;
  uint32_t thread = 0;  ///< by the system's number
  int64_t begin_ns = 0;
  int64_t ran_ns = -1;     ///< what its thread had run by then; -1 unknown
  int64_t off_cpu_ns = 0;  ///< for how long a step's thread usually does not run
};

/// When the thread of a step that takes long waited for the GIL, as far as somebody looks at it
/// again and again. A wait that goes on at the first look began when the thread had not run for
/// longer than usual; all others begin and end in the middle between two looks. A thread that waits
/// wakes every few milliseconds to ask for the GIL: where it is ready, but has hardly run since it
/// was last seen to wait, it still does.
///
/// Each is a time in the log of causes, with the thread that has run meanwhile; and each step that
/// was looked at is a sum of 0 there, so that it is known where there was none.
class GilWaits {
 public:
  using ReadTimes = std::function<void(ThreadTimes&)>;

  GilWaits(CauseLog& causes, ReadTimes read_times)
      : causes_(causes), read_times_(std::move(read_times)) {}

  /// `ran_ns`: what its thread has run so far.
  void look(const StepAtWork& step, int64_t now_ns, Seen seen, int64_t ran_ns) {
    const bool is_first = step_.serial != step.serial;
    if (is_first) {
      step_ = step;
      last_ns_ = step.begin_ns;
    }
    if (seen == Seen::waiting_for_gil) {
      if (!since_ns_) {
        since_ns_ = is_first && step.ran_ns >= 0 ? first_begin_ns(now_ns, ran_ns)
                                                 : last_ns_ + (now_ns - last_ns_) / 2;
        read_times_(before_);
        looked_ns_ = now_ns;
      }
      waited_ns_ = now_ns;
      ran_by_then_ns_ = ran_ns;
    } else if (since_ns_) {
      const int64_t gap_ns = now_ns - waited_ns_;
      if (seen != Seen::ready || ran_ns - ran_by_then_ns_ > gap_ns / 4)
        add(waited_ns_ + gap_ns / 2);
    }
    last_ns_ = now_ns;
  }

  bool is_looking() const { return step_.serial != kNoStep; }
  uint32_t serial() const { return step_.serial; }

  /// The step is over. To be called before another one is looked at.
  void step_ends(int64_t end_ns) {
    if (since_ns_) add(last_ns_ == waited_ns_ ? std::max(end_ns, *since_ns_) : waited_ns_);
    causes_.add_of_step(CauseKind::kGilWait, step_.serial, end_ns, 0);
    step_ = {};
  }

 private:
  int64_t first_begin_ns(int64_t now_ns, int64_t ran_ns) const {
    const int64_t elapsed_ns = now_ns - step_.begin_ns;
    const int64_t off_ns = elapsed_ns - (ran_ns - step_.ran_ns) - step_.off_cpu_ns;
    return now_ns - std::clamp(off_ns, int64_t{0}, std::max(elapsed_ns, int64_t{0}));
  }

  void add(int64_t end_ns) {
    ThreadTimes now;
    read_times_(now);
    const uint32_t holder = now.busiest_since(before_, step_.thread, end_ns - looked_ns_);
    causes_.add(CauseKind::kGilWait, *since_ns_, end_ns, step_.thread, holder);
    since_ns_.reset();
  }

  CauseLog& causes_;
  const ReadTimes read_times_;
  StepAtWork step_;
  int64_t last_ns_ = 0;              ///< when it was last looked at
  std::optional<int64_t> since_ns_;  ///< of the wait that goes on
  int64_t looked_ns_ = 0;            ///< when that was first seen
  ThreadTimes before_;               ///< at that time
  int64_t waited_ns_ = 0;            ///< when it was last seen
  int64_t ran_by_then_ns_ = 0;
};

}  // namespace pig
