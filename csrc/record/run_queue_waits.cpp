// SPDX-License-Identifier: Apache-2.0
#include "record/run_queue_waits.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "record/usual_growth.h"

namespace pig {
namespace {

/// What reading long steps may take beyond its share, so that the first of them are read.
constexpr double kLongAheadNs = 2e6;
/// One that is so long that reading takes less than this share of what it is too long is read also
/// beyond that.
constexpr double kMostOfExcess = 0.002;

}  // namespace

struct RunQueueWaits::OfThread {
  RunQueueWaits* part = nullptr;
  uint32_t recording = 0;
  File* file = nullptr;
  // Of the open step.
  uint32_t step = kNoStep;
  int64_t begin_ns = 0;
  int64_t cost_ns = 0;
  bool is_read = false;
  std::optional<uint64_t> waited_before;
  // Of the last one.
  int64_t end_ns = 0;
  std::optional<int64_t> waited_ns;
  std::optional<uint64_t> waited_by_end;  ///< where it was read
  // Of the last one that was read, and since.
  std::optional<uint64_t> waited_last;
  SinceReading since;
  bool has_missed = false;  ///< a long step, as there was no budget for it
  UsualGrowth waits_ns;
  UsualGaps gaps;
  // Of all steps, and what it took to read long ones.
  double steps_ns = 0;
  double long_cost_ns = 0;
  double last_cost_ns = 0;
};

constinit thread_local RunQueueWaits::OfThread* RunQueueWaits::of_this_thread = nullptr;
const ThreadEnd RunQueueWaits::thread_end(thread_ends);

void RunQueueWaits::reset(const Session& session) {
  clock_ = &session.clock;
  budget_.reset(kBudget);
}

void RunQueueWaits::start(std::string path, const std::vector<std::string>& groups) {
  {
    const std::lock_guard lock(lock_);
    path_ = std::move(path);
    group_count_ = std::min(groups.size(), kMaxGroups);
    for (size_t i = 0; i < group_count_; ++i)
      groups_[i] = HighDescriptor(open(groups[i].c_str(), O_RDONLY | O_CLOEXEC));
    throttled_before_ = throttled_ns().value_or(0);
  }
  is_on_.store(true, std::memory_order_release);
}

void RunQueueWaits::close() {
  is_on_.store(false, std::memory_order_relaxed);
  const std::lock_guard lock(lock_);
  ++recordings_;  // threads have no file any more
  abandon();
}

/// In a forked child, too, where the lock may be held by a thread that does not exist.
void RunQueueWaits::abandon() {
  for (File& file : files_) {
    file.descriptor.close();
    file.is_taken = false;
  }
  for (HighDescriptor& group : groups_) group.close();
  group_count_ = 0;
}

void RunQueueWaits::step_begins(uint32_t serial) noexcept {
  if (!is_on_.load(std::memory_order_acquire)) return;
  OfThread* const of_it = this_thread_of_it();
  if (of_it == nullptr) return;
  OfThread& own = *of_it;
  own.step = serial;
  own.begin_ns = clock_->to_ns(read_ticks());
  own.cost_ns = 0;
  own.is_read = budget_.begin_step();
  const int64_t gap_ns = own.begin_ns - own.end_ns;
  if (own.waited_last) own.since.outside_ns += gap_ns;
  if (own.is_read && own.waited_by_end && gap_ns < kAtOnceNs) {
    own.waited_before = own.waited_by_end;
    return;
  }
  const bool is_behind_gap = own.waited_last && own.gaps.is_rare(gap_ns);
  if (!own.is_read && !is_behind_gap) return;
  const std::optional<uint64_t> waited_now = read(own);
  if (own.is_read) own.waited_before = waited_now;
  if (own.waited_last && waited_now && *waited_now >= *own.waited_last) {
    own.gaps.add(own.since);
    own.waits_ns.add_gaps(static_cast<int64_t>(*waited_now - *own.waited_last), own.since);
  }
  own.waited_last = waited_now;
  own.since = {};
  own.cost_ns = clock_->to_ns(read_ticks()) - own.begin_ns;
}

void RunQueueWaits::step_ends(uint32_t serial) noexcept {
  if (of_this_thread == nullptr) return;
  OfThread& own = *of_this_thread;
  if (own.step != serial || own.part != this || !is_on_.load(std::memory_order_acquire)) return;
  own.step = kNoStep;
  own.end_ns = clock_->to_ns(read_ticks());
  const int64_t time_ns = own.end_ns - own.begin_ns;
  own.steps_ns += static_cast<double>(time_ns);
  const bool takes_long = this->is_long(time_ns);
  const bool is_cheap =
      own.long_cost_ns < kLongAheadNs + kBudget * own.steps_ns ||
      kMostOfExcess * static_cast<double>(time_ns - typical_ns()) > own.last_cost_ns;
  const bool is_long = takes_long && is_cheap;
  own.waited_ns.reset();
  own.waited_by_end = own.is_read || is_long ? read(own) : std::nullopt;
  if (own.waited_before && own.waited_by_end && *own.waited_by_end >= *own.waited_before) {
    const uint64_t waited_ns = *own.waited_by_end - *own.waited_before;
    series_.add_to(serial, "processor_wait_ns", static_cast<double>(waited_ns));
    if (!is_long) own.waits_ns.add_step(static_cast<int64_t>(waited_ns));
    own.waited_ns = std::min(static_cast<int64_t>(waited_ns), time_ns);
  }
  if (is_long) {
    read_long_step(own, serial);
    own.last_cost_ns = static_cast<double>(clock_->to_ns(read_ticks()) - own.end_ns);
    own.long_cost_ns += own.last_cost_ns;
  } else if (takes_long) {
    own.has_missed = true;
  }
  own.waited_before.reset();
  ++own.since.steps;
  if (own.waited_by_end) {
    own.waited_last = own.waited_by_end;
    own.since = {};
  }
  if (serial < kColdSteps || (!own.is_read && serial % kStepsPerUpdate != 0)) return;
  const int64_t cost_ns = own.cost_ns + clock_->to_ns(read_ticks()) - own.end_ns;
  const auto duration_ns = static_cast<uint64_t>(std::max(own.end_ns - own.begin_ns, int64_t{0}));
  budget_.end_step(duration_ns, static_cast<uint64_t>(std::max(cost_ns, int64_t{0})));
}

void RunQueueWaits::read_long_step(OfThread& own, uint32_t serial) noexcept {
  const int64_t duration_ns = own.end_ns - own.begin_ns;
  const auto at_most = [&](uint64_t time_ns) {
    return std::min(static_cast<int64_t>(time_ns), duration_ns);
  };
  const bool has_missed = std::exchange(own.has_missed, false);
  if (!own.is_read && !has_missed && own.waited_last && own.waited_by_end &&
      own.gaps.tell_of(own.since, duration_ns)) {
    const uint64_t since_ns = *own.waited_by_end - std::min(*own.waited_last, *own.waited_by_end);
    const auto usual_ns = static_cast<uint64_t>(own.waits_ns.before_step(own.since));
    const uint64_t before_ns = std::min(usual_ns, since_ns);
    own.waited_ns = at_most(since_ns - before_ns);
  }
  if (own.waited_ns)
    causes_.add_of_step(CauseKind::kProcessorWait, serial, own.end_ns, *own.waited_ns);
  const std::lock_guard lock(lock_);
  const std::optional<uint64_t> throttled = throttled_ns();
  if (!throttled) return;
  const uint64_t before_ns = std::exchange(throttled_before_, *throttled);
  if (has_missed) return;  // it may have been in that long step
  causes_.add_of_step(CauseKind::kThrottled, serial, own.end_ns,
                      at_most(*throttled - std::min(before_ns, *throttled)));
}

std::optional<uint64_t> RunQueueWaits::throttled_ns() noexcept {
  constexpr struct {
    const char* name;
    uint64_t ns;
  } kCounts[] = {{"throttled_usec ", 1000}, {"throttled_time ", 1}};  // of cgroup v2 and v1
  uint64_t sum_ns = 0;
  bool is_known = false;
  for (size_t i = 0; i < group_count_; ++i) {
    struct stat status;
    char text[1024];
    if (!groups_[i].is_ours(status)) continue;
    const ssize_t count = pread(groups_[i].number(), text, sizeof text - 1, 0);
    text[std::max<ssize_t>(count, 0)] = '\0';
    for (const auto& [name, ns] : kCounts) {
      const char* const found = std::strstr(text, name);
      if (found == nullptr) continue;
      sum_ns += ns * std::strtoull(found + std::strlen(name), nullptr, 10);
      is_known = true;
      break;
    }
  }
  return is_known ? std::optional(sum_ns) : std::nullopt;
}

std::optional<int64_t> RunQueueWaits::waited_ns() const noexcept {
  const OfThread* const own = of_this_thread;
  return own != nullptr && own->part == this ? own->waited_ns : std::nullopt;
}

void RunQueueWaits::step_is_dropped() noexcept {
  OfThread* const own = of_this_thread;
  if (own != nullptr && std::exchange(own->step, kNoStep) != kNoStep) budget_.drop_step();
}

RunQueueWaits::OfThread* RunQueueWaits::this_thread_of_it() noexcept {
  OfThread* const of_it = own_of_thread(of_this_thread, thread_end);
  if (of_it == nullptr) return nullptr;
  OfThread& own = *of_it;
  const std::lock_guard lock(lock_);
  if (own.part == this && own.recording == recordings_) return &own;
  own = OfThread();
  own.part = this;
  own.recording = recordings_;
  File* const free =
      std::find_if(files_.begin(), files_.end(), [](const File& file) { return !file.is_taken; });
  if (free == files_.end()) return &own;
  free->descriptor = HighDescriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  free->is_taken = true;
  own.file = free;
  return &own;
}

std::optional<uint64_t> RunQueueWaits::read(OfThread& own) noexcept {
  const std::lock_guard lock(lock_);
  struct stat status;
  if (own.file == nullptr || own.recording != recordings_ || !own.file->descriptor.is_ours(status))
    return std::nullopt;
  char text[96];
  const ssize_t count = pread(own.file->descriptor.number(), text, sizeof text - 1, 0);
  text[std::max<ssize_t>(count, 0)] = '\0';
  char* end = text;
  const uint64_t ran_ns = std::strtoull(text, &end, 10);
  const char* const second = end;
  const uint64_t waited_ns = std::strtoull(second, &end, 10);
  // A kernel that doesn't count says that the thread has never run.
  if (ran_ns == 0 || end == second) return std::nullopt;
  return waited_ns;
}

void RunQueueWaits::thread_ends(void* thread) {
  const std::unique_ptr<OfThread> own(static_cast<OfThread*>(thread));
  of_this_thread = nullptr;
  if (own->file == nullptr) return;
  const std::lock_guard lock(own->part->lock_);
  if (own->recording != own->part->recordings_) return;
  own->file->descriptor.close();
  own->file->is_taken = false;
}

}  // namespace pig
