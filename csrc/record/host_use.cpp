// SPDX-License-Identifier: Apache-2.0
#include "record/host_use.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "record/usual_growth.h"

namespace pig {
namespace {

/// What reading long steps may take beyond its share, so that the first of them are read.
constexpr double kLongAheadNs = 2e6;
/// One that is so long that reading takes less than this share of what it is too long is read also
/// beyond that.
constexpr double kMostOfExcess = 0.005;
/// A step that begins so soon after the last one begins with what was read at its end.
constexpr int64_t kAtOnceNs = 10'000;
/// The first readings take far longer than all others, and don't count.
constexpr uint32_t kColdSteps = 3;
/// To update the budget takes as long as a very short step.
constexpr uint32_t kStepsPerUpdate = 16;
/// How many times as much as on fresh memory a fault may cost, and so much system time at least
/// says that it does: the kernel counts that in ticks.
constexpr int64_t kMostFault = 5;
constexpr int64_t kLeastSystemNs = 20'000'000;
/// A page that is read from a disk, with what is read ahead, takes no longer.
constexpr int64_t kMostDiskNs = 10'000'000;
/// Of usual steps that are read these are noted: the first, and then so many.
constexpr uint32_t kFirstNoted = 256;
constexpr uint32_t kNotedEvery = 4;
/// The kernel adds up what all processors say.
constexpr int64_t kPressureIntervalNs = 100'000'000;

/// What a fault on fresh memory costs: the cheaper of two tries. Fewer pages would be in the
/// processor's caches, where they cost less. 0 where there is no memory.
int64_t measure_fault_ns() {
  constexpr size_t kPages = 1024;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  int64_t least_ns = 0;
  for (int i = 0; i < 2; ++i) {
    void* const memory =
        mmap(nullptr, kPages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 0;
    madvise(memory, kPages * page, MADV_NOHUGEPAGE);
    const int64_t begin_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    for (size_t at = 0; at < kPages; ++at) static_cast<volatile char*>(memory)[at * page] = 1;
    const int64_t time_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns;
    munmap(memory, kPages * page);
    least_ns = i == 0 ? time_ns : std::min(least_ns, time_ns);
  }
  return least_ns / static_cast<int64_t>(kPages);
}

}  // namespace

struct HostUse::OfThread {
  HostUse* part = nullptr;
  uint32_t recording = 0;
  uint32_t thread = 0;
  File* file = nullptr;
  // Of the open step.
  uint32_t step = kNoStep;
  int64_t begin_ns = 0;
  int64_t cost_ns = 0;
  bool is_read = false;
  // Of the last one.
  int64_t end_ns = 0;
  // The last reading: where a step that is read begins, or else where one ended.
  std::optional<ThreadCounts> last;
  SinceReading since;
  bool has_missed = false;  ///< a long step, as there was no budget for it
  UsualGrowth ran_ns, system_ns, faults, queued_ns;
  UsualGaps gaps;
  // Of all steps, and what it took to read long ones.
  double steps_ns = 0;
  double long_cost_ns = 0;
  RecentMedian long_costs_ns;  ///< another program may have had the processor meanwhile

  int64_t duration_ns() const { return std::max(end_ns - begin_ns, int64_t{0}); }
};

constinit thread_local HostUse::OfThread* HostUse::of_this_thread = nullptr;
const ThreadEnd HostUse::thread_end(thread_ends);

void HostUse::reset(const Session& session) {
  clock_ = &session.clock;
  budget_.reset(kBudget);
  usual_ = 0;
  open_ = {};
  ended_ = kNoStep;
  off_cpu_ns_ = {};
}

void HostUse::watch_run_queue(std::string schedstat, const std::vector<std::string>& groups) {
  {
    const std::lock_guard lock(file_lock_);
    schedstat_ = std::move(schedstat);
    group_count_ = std::min(groups.size(), kMaxGroups);
    for (size_t i = 0; i < group_count_; ++i)
      groups_[i] = HighDescriptor(open(groups[i].c_str(), O_RDONLY | O_CLOEXEC));
    throttled_before_ = throttled_ns().value_or(0);
  }
  watches_queue_.store(true, std::memory_order_release);
}

void HostUse::watch_use(const std::string& pressure) {
  if (is_watching_use()) return;
  pressed_ns_ = -1;
  pressure_ = HighDescriptor(pressure.empty() ? -1 : open(pressure.c_str(), O_RDONLY | O_CLOEXEC));
  fault_ns_ = measure_fault_ns();
  watches_use_.store(true, std::memory_order_release);
}

void HostUse::close() {
  watches_queue_.store(false, std::memory_order_relaxed);
  watches_use_.store(false, std::memory_order_relaxed);
  const std::lock_guard lock(file_lock_);
  ++recordings_;  // threads have nothing any more
  abandon();
}

/// In a forked child, too, where the lock may be held by a thread that does not exist.
void HostUse::abandon() {
  for (File& file : files_) {
    file.descriptor.close();
    file.is_taken = false;
  }
  for (HighDescriptor& group : groups_) group.close();
  group_count_ = 0;
  pressure_.close();
}

HostUse::OfThread* HostUse::this_thread() noexcept {
  OfThread* const of_it = own_of_thread(of_this_thread, thread_end);
  if (of_it == nullptr) return nullptr;
  OfThread& own = *of_it;
  const std::lock_guard lock(file_lock_);
  if (own.part == this && own.recording == recordings_) return &own;
  own = OfThread();
  own.part = this;
  own.recording = recordings_;
  own.thread = static_cast<uint32_t>(gettid());
  File* const free =
      std::find_if(files_.begin(), files_.end(), [](const File& file) { return !file.is_taken; });
  if (free == files_.end()) return &own;
  free->descriptor = HighDescriptor(open(schedstat_.c_str(), O_RDONLY | O_CLOEXEC));
  free->is_taken = true;
  own.file = free;
  return &own;
}

HostUse::OfThread* HostUse::of_open_step(uint32_t serial) const noexcept {
  OfThread* const own = of_this_thread;
  return own != nullptr && own->step == serial && own->part == this ? own : nullptr;
}

void HostUse::thread_ends(void* thread) {
  const std::unique_ptr<OfThread> own(static_cast<OfThread*>(thread));
  of_this_thread = nullptr;
  if (own->file == nullptr) return;
  const std::lock_guard lock(own->part->file_lock_);
  if (own->recording != own->part->recordings_) return;
  own->file->descriptor.close();
  own->file->is_taken = false;
}

ThreadCounts HostUse::read(OfThread& own) noexcept {
  const std::lock_guard lock(file_lock_);
  HighDescriptor none;
  const bool has_file = own.file != nullptr && own.recording == recordings_;
  return ThreadCounts::read(has_file ? own.file->descriptor : none);
}

void HostUse::begin(OfThread& own) noexcept {
  const std::optional<ThreadCounts> before = std::exchange(own.last, read(own));
  const SinceReading since = std::exchange(own.since, {});
  if (!before) return;
  own.gaps.add(since);
  if (since.has_long) return;
  const ThreadCounts used = own.last->since(*before);
  own.ran_ns.add_gaps(used.ran_ns, since);
  own.system_ns.add_gaps(used.system_ns, since);
  own.faults.add_gaps(used.minor_faults, since);
  if (used.queued_ns) own.queued_ns.add_gaps(*used.queued_ns, since);
}

void HostUse::step_begins(uint32_t serial) noexcept {
  if (!watches_queue_.load(std::memory_order_acquire) && !is_watching_use()) return;
  OfThread* const of_it = this_thread();
  if (of_it == nullptr) return;
  OfThread& own = *of_it;
  own.step = serial;
  own.begin_ns = clock_->to_ns(read_ticks());
  own.cost_ns = 0;
  own.is_read = budget_.begin_step();
  const int64_t outside_ns = own.begin_ns - own.end_ns;
  own.since.outside_ns += outside_ns;
  const bool is_at_once = own.last && own.since.steps == 0 && outside_ns < kAtOnceNs;
  if (own.is_read ? !is_at_once : own.gaps.is_rare(outside_ns)) {
    begin(own);
    own.cost_ns = clock_->to_ns(read_ticks()) - own.begin_ns;
  }
  int64_t ran_ns = -1;
  if (own.last) ran_ns = own.last->ran_ns;
  if (own.last && own.since.steps > 0) ran_ns += own.ran_ns.before_step(own.since);
  const std::lock_guard lock(step_lock_);
  open_ = {serial, own.thread, own.begin_ns, ran_ns};
}

void HostUse::step_ends(uint32_t serial) noexcept {
  OfThread* const of_it = of_open_step(serial);
  if (of_it == nullptr) return;
  OfThread& own = *of_it;
  own.step = kNoStep;
  own.end_ns = clock_->to_ns(read_ticks());
  {
    const std::lock_guard lock(step_lock_);
    open_ = {};
    ended_ = serial;
    ended_ns_ = own.end_ns;
  }
  const int64_t duration_ns = own.duration_ns();
  own.steps_ns += static_cast<double>(duration_ns);
  const bool takes_long = is_long(duration_ns);
  const bool is_long = takes_long && (own.is_read || is_cheap(own, duration_ns));
  const std::optional<ThreadCounts> used = this->used(own, is_long);
  note_queue(serial, own, used, is_long);
  if (is_watching_use()) {
    if (used) note_use(serial, own, *used, is_long);
    note_pressure(serial, own, is_long);
  }
  if (takes_long && !is_long) own.has_missed = own.since.has_long = true;
  if (is_long) {
    const int64_t cost_ns = clock_->to_ns(read_ticks()) - own.end_ns;
    own.long_costs_ns.add(static_cast<uint64_t>(std::max(cost_ns, int64_t{0})));
    own.long_cost_ns += static_cast<double>(own.long_costs_ns.value());
  }
  if (serial < kColdSteps || (!own.is_read && serial % kStepsPerUpdate != 0)) return;
  const int64_t cost_ns = own.cost_ns + clock_->to_ns(read_ticks()) - own.end_ns;
  budget_.end_step(static_cast<uint64_t>(duration_ns),
                   static_cast<uint64_t>(std::max(cost_ns, int64_t{0})));
}

bool HostUse::is_cheap(const OfThread& own, int64_t duration_ns) const noexcept {
  const double excess_ns =
      static_cast<double>(duration_ns) - static_cast<double>(budget_.typical_ns());
  return own.long_cost_ns < kLongAheadNs + kBudget * own.steps_ns ||
         static_cast<double>(own.long_costs_ns.value()) < kMostOfExcess * excess_ns;
}

std::optional<ThreadCounts> HostUse::used(OfThread& own, bool is_long) noexcept {
  if (!own.is_read && !is_long) {
    ++own.since.steps;
    return std::nullopt;
  }
  const std::optional<ThreadCounts> before = std::exchange(own.last, read(own));
  const SinceReading since = std::exchange(own.since, {});
  if (!before) return std::nullopt;
  ThreadCounts used = own.last->since(*before);
  if (!own.is_read) {
    if (!own.gaps.tell_of(since, own.duration_ns())) return std::nullopt;
    const auto take = [&](int64_t& all, const UsualGrowth& usual) {
      all = std::max(all - usual.before_step(since), int64_t{0});
    };
    take(used.ran_ns, own.ran_ns);
    take(used.system_ns, own.system_ns);
    take(used.minor_faults, own.faults);
    if (used.queued_ns) take(*used.queued_ns, own.queued_ns);
  } else if (!is_long) {
    own.ran_ns.add_step(used.ran_ns);
    own.system_ns.add_step(used.system_ns);
    own.faults.add_step(used.minor_faults);
    if (used.queued_ns) own.queued_ns.add_step(*used.queued_ns);
  }
  return used;
}

void HostUse::note_queue(uint32_t serial, OfThread& own, const std::optional<ThreadCounts>& used,
                         bool is_long) noexcept {
  if (used && used->queued_ns) {
    if (own.is_read)
      series_.add_to(serial, "processor_wait_ns", static_cast<double>(*used->queued_ns));
    if (is_long)
      causes_.add_of_step(CauseKind::kProcessorWait, serial, own.end_ns,
                          std::min(*used->queued_ns, own.duration_ns()));
  }
  if (!is_long) return;
  const bool has_missed = std::exchange(own.has_missed, false);
  const std::lock_guard lock(file_lock_);
  const std::optional<uint64_t> throttled = throttled_ns();
  if (!throttled) return;
  const uint64_t before_ns = std::exchange(throttled_before_, *throttled);
  if (has_missed) return;  // it may have been in that long step
  const uint64_t since_ns = *throttled - std::min(before_ns, *throttled);
  causes_.add_of_step(CauseKind::kThrottled, serial, own.end_ns,
                      std::min(static_cast<int64_t>(since_ns), own.duration_ns()));
}

std::optional<uint64_t> HostUse::throttled_ns() noexcept {
  constexpr struct {
    const char* name;
    uint64_t ns;
  } kCounts[] = {{"throttled_usec ", 1000}, {"throttled_time ", 1}};  // of cgroup v2 and v1
  std::optional<uint64_t> sum_ns;
  for (size_t i = 0; i < group_count_; ++i) {
    char text[1024];
    groups_[i].read(text);
    for (const auto& [name, ns] : kCounts) {
      const char* const found = std::strstr(text, name);
      if (found == nullptr) continue;
      sum_ns = sum_ns.value_or(0) + ns * std::strtoull(found + std::strlen(name), nullptr, 10);
      break;
    }
  }
  return sum_ns;
}

void HostUse::note_use(uint32_t serial, const OfThread& own, const ThreadCounts& used,
                       bool is_long) noexcept {
  const int64_t duration_ns = own.duration_ns();
  const int64_t off_ns = std::max(duration_ns - used.ran_ns, int64_t{0});
  int64_t usual_ns = 0;
  {
    const std::lock_guard lock(step_lock_);
    if (!is_long) off_cpu_ns_.add(static_cast<uint64_t>(off_ns));
    if (is_long) usual_ns = static_cast<int64_t>(off_cpu_ns_.value());
  }
  if (!is_long && ++usual_ > kFirstNoted && usual_ % kNotedEvery != 0) return;
  const auto add = [&](CauseKind kind, int64_t time_ns) {
    causes_.add_of_step(kind, serial, own.end_ns, time_ns);
  };
  add(CauseKind::kComputing, used.ran_ns);
  if (used.queued_ns && used.sleeps == 0)
    add(CauseKind::kSteal, std::max(off_ns - std::min(*used.queued_ns, duration_ns), int64_t{0}));
  if (fault_ns_ > 0) {
    int64_t faults_ns = used.minor_faults * fault_ns_;
    if (used.system_ns >= std::max(kLeastSystemNs, faults_ns))
      faults_ns = std::min(used.system_ns, kMostFault * faults_ns);
    add(CauseKind::kPageFaults, faults_ns);
  }
  if (is_long)
    add(CauseKind::kDiskPages,
        std::clamp(off_ns - usual_ns, int64_t{0}, kMostDiskNs * used.major_faults));
}

/// What was added since the last reading counts by the part of that time which is the step's.
void HostUse::note_pressure(uint32_t serial, const OfThread& own, bool is_long) noexcept {
  const int64_t elapsed_ns = own.end_ns - pressed_at_ns_;
  if (!is_long && elapsed_ns < kPressureIntervalNs && pressed_ns_ >= 0) return;
  char text[256];
  const char* const found = std::strstr(pressure_.read(text), "total=");  // "some" comes first
  if (found == nullptr) return;
  const int64_t sum_ns = 1000 * std::strtoll(found + std::strlen("total="), nullptr, 10);
  const int64_t more_ns = pressed_ns_ < 0 ? -1 : sum_ns - pressed_ns_;
  const auto duration_ns = static_cast<double>(own.duration_ns());
  const double share =
      std::min(1.0, duration_ns / static_cast<double>(std::max<int64_t>(elapsed_ns, 1)));
  pressed_ns_ = sum_ns;
  pressed_at_ns_ = own.end_ns;
  if (is_long && more_ns >= 0)
    causes_.add_of_step(
        CauseKind::kMemoryPressure, serial, own.end_ns,
        std::min<int64_t>(std::llround(share * static_cast<double>(more_ns)), own.duration_ns()));
}

void HostUse::step_is_dropped() noexcept {
  OfThread* const own = of_this_thread;
  if (own != nullptr && std::exchange(own->step, kNoStep) != kNoStep) budget_.drop_step();
  const std::lock_guard lock(step_lock_);
  open_ = {};
}

StepAtWork HostUse::open_step() const noexcept {
  const std::lock_guard lock(step_lock_);
  StepAtWork step = open_;
  if (step.serial != kNoStep) step.off_cpu_ns = static_cast<int64_t>(off_cpu_ns_.value());
  return step;
}

std::optional<int64_t> HostUse::end_of(uint32_t serial) const noexcept {
  const std::lock_guard lock(step_lock_);
  return ended_ == serial ? std::optional(ended_ns_) : std::nullopt;
}

}  // namespace pig
