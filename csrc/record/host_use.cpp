// SPDX-License-Identifier: Apache-2.0
#include "record/host_use.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "base/clock.h"
#include "record/usual_growth.h"

namespace pig {
namespace {

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

constexpr std::chrono::milliseconds kRest{50};
constexpr std::chrono::milliseconds kShortestLook{1};
/// A step that goes on is looked at again after such a part of the time that it has taken.
constexpr int64_t kLooks = 64;

int64_t in_ns(const timeval& time) { return (time.tv_sec * 1'000'000 + time.tv_usec) * 1000; }

/// The clock of what a thread of this process has run (`pthread_getcpuclockid`, for its number).
clockid_t cpu_clock(uint32_t thread) { return static_cast<clockid_t>((~thread << 3) | 6); }

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

/// What a small file of the kernel says; empty where it can't be read.
template <size_t N>
const char* text_of(HighDescriptor& file, char (&text)[N]) {
  struct stat status;
  const ssize_t count =
      file.is_ours(status) ? pread(file.number(), text, sizeof text - 1, 0) : ssize_t{0};
  text[std::max<ssize_t>(count, 0)] = '\0';
  return text;
}

}  // namespace

/// What the kernel has counted of a thread.
struct HostUse::Counts {
  int64_t ran_ns = 0;
  int64_t system_ns = 0;
  int64_t minor = 0;
  int64_t major = 0;
  int64_t sleeps = 0;

  static Counts read() noexcept {
    // First the clock: it has the kernel count what the thread has run up to now.
    const int64_t ran_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    rusage use{};
    getrusage(RUSAGE_THREAD, &use);
    return {ran_ns, in_ns(use.ru_stime), use.ru_minflt, use.ru_majflt, use.ru_nvcsw};
  }

  Counts since(const Counts& before) const {
    return {ran_ns - before.ran_ns, system_ns - before.system_ns, minor - before.minor,
            major - before.major, sleeps - before.sleeps};
  }
};

struct HostUse::OfThread {
  const HostUse* part = nullptr;
  uint32_t recording = 0;
  uint32_t thread = 0;
  // Of the open step.
  uint32_t step = kNoStep;
  int64_t begin_ns = 0;
  int64_t cost_ns = 0;
  bool is_read = false;
  // Of the last one.
  int64_t end_ns = 0;
  // The last reading: where a step that is read begins, or else where one ended.
  std::optional<Counts> last;
  SinceReading since;
  UsualGrowth ran_ns, system_ns, faults;
  UsualGaps gaps;

  /// Returns what has been counted since the last reading.
  std::optional<Counts> read() noexcept {
    const std::optional<Counts> before = std::exchange(last, Counts::read());
    if (!before) return std::nullopt;
    return last->since(*before);
  }
  /// The open step begins, and is read.
  void begin() noexcept {
    if (const std::optional<Counts> used = read()) {
      gaps.add(since);
      ran_ns.add_gaps(used->ran_ns, since);
      system_ns.add_gaps(used->system_ns, since);
      faults.add_gaps(used->minor, since);
    }
    since = {};
  }
};

constinit thread_local HostUse::OfThread* HostUse::of_this_thread = nullptr;
const ThreadEnd HostUse::thread_end([](void* own) {
  of_this_thread = nullptr;
  delete static_cast<OfThread*>(own);
});

void HostUse::reset(const Session& session) {
  clock_ = &session.clock;
  budget_.reset(kBudget);
  ++recordings_;
  usual_ = 0;
  open_ = {};
  ended_ = kNoStep;
  off_cpu_ns_ = {};
}

void HostUse::start(const std::string& pressure) {
  if (is_on_.load(std::memory_order_relaxed)) return;
  pressed_ns_ = -1;
  pressure_ = HighDescriptor(pressure.empty() ? -1 : open(pressure.c_str(), O_RDONLY | O_CLOEXEC));
  fault_ns_ = measure_fault_ns();
  is_on_.store(true, std::memory_order_release);
}

void HostUse::watch_gil(std::string threads, uint64_t gil_address) {
  if (has_thread_ || !is_on_.load(std::memory_order_relaxed)) return;
  threads_ = std::move(threads);
  gil_address_ = gil_address;
  stops_.store(false, std::memory_order_relaxed);
  const SignalsBlocked blocked;
  const auto run = [](void* part) -> void* {
    static_cast<HostUse*>(part)->live();
    return nullptr;
  };
  has_thread_ = pthread_create(&thread_, nullptr, run, this) == 0;
  if (has_thread_) pthread_setname_np(thread_, "pig-sampler");
}

void HostUse::close() {
  is_on_.store(false, std::memory_order_relaxed);
  stops_.store(true, std::memory_order_relaxed);
  alarm_.ring();
  if (std::exchange(has_thread_, false)) pthread_join(thread_, nullptr);  // it waits for nothing
  abandon();
}

void HostUse::abandon() {
  pressure_.close();
  file_.close();
  file_of_ = 0;
}

void HostUse::step_begins(uint32_t serial) noexcept {
  if (!is_on_.load(std::memory_order_acquire)) return;
  OfThread* const of_it = this_thread();
  if (of_it == nullptr) return;
  OfThread& own = *of_it;
  own.step = serial;
  own.begin_ns = clock_->to_ns(read_ticks());
  own.cost_ns = 0;
  own.is_read = budget_.begin_step();
  const int64_t outside_ns = own.begin_ns - own.end_ns;
  own.since.outside_ns += outside_ns;
  const bool is_at_once = own.last && own.since.steps == 0 && outside_ns < RunQueueWaits::kAtOnceNs;
  if (own.is_read ? !is_at_once : own.gaps.is_rare(outside_ns)) {
    own.begin();
    own.cost_ns = clock_->to_ns(read_ticks()) - own.begin_ns;
  }
  int64_t ran_ns = -1;
  if (own.last) ran_ns = own.last->ran_ns;
  if (own.last && own.since.steps > 0) ran_ns += own.ran_ns.before_step(own.since);
  const std::lock_guard lock(lock_);
  open_ = {serial, own.thread, own.begin_ns, ran_ns};
}

HostUse::OfThread* HostUse::this_thread() noexcept {
  OfThread* const of_it = own_of_thread(of_this_thread, thread_end);
  if (of_it == nullptr) return nullptr;
  OfThread& own = *of_it;
  if (own.part != this || own.recording != recordings_) {
    own = OfThread();
    own.part = this;
    own.recording = recordings_;
    own.thread = static_cast<uint32_t>(gettid());
  }
  return &own;
}

void HostUse::step_ends(uint32_t serial) noexcept {
  if (of_this_thread == nullptr) return;
  OfThread& own = *of_this_thread;
  if (own.step != serial || own.part != this || own.recording != recordings_ ||
      !is_on_.load(std::memory_order_acquire))
    return;
  own.step = kNoStep;
  own.end_ns = clock_->to_ns(read_ticks());
  const int64_t duration_ns = own.end_ns - own.begin_ns;
  const bool is_long = run_queue_.is_long(duration_ns);
  const std::optional<Counts> used = this->used(own, is_long);
  if (serial >= RunQueueWaits::kColdSteps &&
      (own.is_read || serial % RunQueueWaits::kStepsPerUpdate == 0)) {
    const int64_t cost_ns = own.cost_ns + clock_->to_ns(read_ticks()) - own.end_ns;
    budget_.end_step(static_cast<uint64_t>(std::max(duration_ns, int64_t{0})),
                     static_cast<uint64_t>(std::max(cost_ns, int64_t{0})));
  }
  {
    const std::lock_guard lock(lock_);
    open_ = {};
    ended_ = serial;
    ended_ns_ = own.end_ns;
  }
  if (used) note(serial, *used, own.begin_ns, own.end_ns, is_long);
  note_pressure(serial, own.begin_ns, own.end_ns, is_long);
}

std::optional<HostUse::Counts> HostUse::used(OfThread& own, bool is_long) const noexcept {
  if (!own.is_read && !is_long) {
    ++own.since.steps;
    return std::nullopt;
  }
  std::optional<Counts> used = own.read();
  const SinceReading since = std::exchange(own.since, {});
  if (!used) return std::nullopt;
  if (!own.is_read) {
    if (!own.gaps.tell_of(since, own.end_ns - own.begin_ns)) return std::nullopt;
    const auto take = [&](int64_t& all, const UsualGrowth& usual) {
      all = std::max(all - usual.before_step(since), int64_t{0});
    };
    take(used->ran_ns, own.ran_ns);
    take(used->system_ns, own.system_ns);
    take(used->minor, own.faults);
  } else if (!is_long) {
    own.ran_ns.add_step(used->ran_ns);
    own.system_ns.add_step(used->system_ns);
    own.faults.add_step(used->minor);
  }
  return used;
}

void HostUse::note(uint32_t serial, const Counts& used, int64_t begin_ns, int64_t end_ns,
                   bool is_long) noexcept {
  const int64_t off_ns = std::max(end_ns - begin_ns - used.ran_ns, int64_t{0});
  int64_t usual_ns = 0;
  {
    const std::lock_guard lock(lock_);
    if (!is_long) off_cpu_ns_.add(static_cast<uint64_t>(off_ns));
    if (is_long) usual_ns = static_cast<int64_t>(off_cpu_ns_.value());
  }
  if (!is_long && ++usual_ > kFirstNoted && usual_ % kNotedEvery != 0) return;
  causes_.add_of_step(CauseKind::kComputing, serial, end_ns, used.ran_ns);
  const std::optional<int64_t> queued_ns = run_queue_.waited_ns();
  if (queued_ns && used.sleeps == 0)
    causes_.add_of_step(CauseKind::kSteal, serial, end_ns,
                        std::max(off_ns - *queued_ns, int64_t{0}));
  if (fault_ns_ > 0) {
    int64_t faults_ns = used.minor * fault_ns_;
    if (used.system_ns >= std::max(kLeastSystemNs, faults_ns))
      faults_ns = std::min(used.system_ns, kMostFault * faults_ns);
    causes_.add_of_step(CauseKind::kPageFaults, serial, end_ns, faults_ns);
  }
  if (is_long)
    causes_.add_of_step(CauseKind::kDiskPages, serial, end_ns,
                        std::clamp(off_ns - usual_ns, int64_t{0}, kMostDiskNs * used.major));
}

/// What was added since the last reading counts by the part of that time which is the step's.
void HostUse::note_pressure(uint32_t serial, int64_t begin_ns, int64_t end_ns,
                            bool is_long) noexcept {
  if (!is_long && end_ns - pressed_at_ns_ < kPressureIntervalNs && pressed_ns_ >= 0) return;
  char text[256];
  const char* const found = std::strstr(text_of(pressure_, text), "total=");  // "some" comes first
  if (found == nullptr) return;
  const int64_t sum_ns = 1000 * std::strtoll(found + std::strlen("total="), nullptr, 10);
  const int64_t more_ns = pressed_ns_ < 0 ? -1 : sum_ns - pressed_ns_;
  const auto since_ns = static_cast<double>(end_ns - pressed_at_ns_);
  const auto duration_ns = static_cast<double>(end_ns - begin_ns);
  const double share = since_ns > duration_ns ? duration_ns / since_ns : 1.0;
  pressed_ns_ = sum_ns;
  pressed_at_ns_ = end_ns;
  if (is_long && more_ns >= 0)
    causes_.add_of_step(CauseKind::kMemoryPressure, serial, end_ns,
                        std::min(std::llround(share * static_cast<double>(more_ns)),
                                 static_cast<long long>(end_ns - begin_ns)));
}

void HostUse::step_is_dropped() noexcept {
  if (of_this_thread != nullptr && std::exchange(of_this_thread->step, kNoStep) != kNoStep)
    budget_.drop_step();
  const std::lock_guard lock(lock_);
  open_ = {};
}

void HostUse::live() {
  while (!stops_.load(std::memory_order_relaxed)) {
    const uint32_t rings = alarm_.rings();
    alarm_.sleep(rings, look());
  }
  if (waits_.is_looking()) waits_.step_ends(clock_->to_ns(read_ticks()));
}

std::chrono::nanoseconds HostUse::look() {
  const int64_t now_ns = clock_->to_ns(read_ticks());
  StepAtWork step;
  int64_t last_end_ns = now_ns;
  {
    const std::lock_guard lock(lock_);
    step = open_;
    if (ended_ == waits_.serial()) last_end_ns = ended_ns_;
    if (step.serial != kNoStep) step.off_cpu_ns = static_cast<int64_t>(off_cpu_ns_.value());
  }
  if (waits_.is_looking() && waits_.serial() != step.serial) waits_.step_ends(last_end_ns);
  const int64_t elapsed_ns = now_ns - step.begin_ns;
  if (step.serial == kNoStep || !run_queue_.is_long(elapsed_ns)) return kRest;
  waits_.look(step, now_ns, see(step.thread), read_clock_ns(cpu_clock(step.thread)));
  return std::max<std::chrono::nanoseconds>(kShortestLook,
                                            std::chrono::nanoseconds(elapsed_ns / kLooks));
}

Seen HostUse::see(uint32_t thread) {
  char text[256];
  if (thread != file_of_) {
    std::snprintf(text, sizeof text, "%.200s/%u/syscall", threads_.c_str(), thread);
    file_ = HighDescriptor(open(text, O_RDONLY | O_CLOEXEC));
    file_of_ = thread;
  }
  if (is_near(sleeping_address(text_of(file_, text)), gil_address_)) return Seen::waiting_for_gil;
  return std::strncmp(text, "running", 7) == 0 ? Seen::ready : Seen::elsewhere;
}

void HostUse::read_times(ThreadTimes& times) const {
  times.count = 0;
  DIR* const folder = opendir(threads_.c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    const auto thread = static_cast<uint32_t>(std::strtoul(entry->d_name, nullptr, 10));
    timespec ran{};
    if (thread == 0 || times.count == ThreadTimes::kMost ||
        clock_gettime(cpu_clock(thread), &ran) != 0)
      continue;
    times.threads[times.count++] = {thread, ran.tv_sec * 1'000'000'000 + ran.tv_nsec};
  }
  closedir(folder);
}

}  // namespace pig
