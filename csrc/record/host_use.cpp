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
#include <mutex>
#include <utility>

#include "base/clock.h"

namespace pig {
namespace {

/// A step that begins so soon after the last one begins with what was read at its end.
constexpr int64_t kFollowsNs = 10'000;
/// How many times as much as on fresh memory a fault may cost, and so much system time at least
/// says that it does: the kernel counts that in ticks.
constexpr int64_t kMostFault = 5;
constexpr int64_t kLeastSystemNs = 20'000'000;
/// A page that is read from a disk, with what is read ahead, takes no longer.
constexpr int64_t kMostDiskNs = 10'000'000;
/// Of usual steps these are noted: the first, and then so many.
constexpr uint32_t kFirstNoted = 256;
constexpr uint32_t kNotedEvery = 16;
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
};

struct HostUse::OfThread {
  const HostUse* part = nullptr;
  uint32_t recording = 0;
  uint32_t thread = 0;
  // Of the open step.
  uint32_t step = kNoStep;
  int64_t begin_ns = 0;
  bool is_read = false;
  Counts before;
  // Of the last one.
  int64_t end_ns = 0;
  bool is_end_read = false;
  Counts by_end;
};

constinit thread_local HostUse::OfThread HostUse::of_this_thread;

void HostUse::reset(const Session& session) {
  clock_ = &session.clock;
  ++recordings_;
  open_ = {};
  ended_ = kNoStep;
  off_cpu_ns_ = {};
}

void HostUse::start(const std::string& pressure) {
  if (is_on_.load(std::memory_order_relaxed)) return;
  pressed_ns_ = -1;
  pressure_ = HighDescriptor(pressure.empty() ? -1 : open(pressure.c_str(), O_RDONLY | O_CLOEXEC));
  fault_ns_ = measure_fault_ns();
  // On a busy machine some of them are interrupted.
  read_cost_ns_ = INT64_MAX;
  for (int i = 0; i < 8; ++i) {
    const int64_t begin_ns = clock_->to_ns(read_ticks());
    Counts::read();
    read_cost_ns_ = std::min(read_cost_ns_, clock_->to_ns(read_ticks()) - begin_ns);
  }
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
  OfThread& own = of_this_thread;
  if (own.part != this || own.recording != recordings_) {
    own = OfThread();
    own.part = this;
    own.recording = recordings_;
    own.thread = static_cast<uint32_t>(gettid());
  }
  own.step = serial;
  own.begin_ns = clock_->to_ns(read_ticks());
  const double allowed_ns = kBudget * static_cast<double>(run_queue_.typical_ns());
  const auto cost_ns = static_cast<double>(read_cost_ns_);
  // Where not every step is read, it is read twice for each.
  own.is_read = cost_ns <= allowed_ns ||
                serial % static_cast<uint32_t>(1 + 2 * cost_ns / std::max(allowed_ns, 1.0)) == 0;
  if (own.is_read)
    own.before =
        own.is_end_read && own.begin_ns - own.end_ns < kFollowsNs ? own.by_end : Counts::read();
  const std::lock_guard lock(lock_);
  open_ = {serial, own.thread, own.begin_ns, own.is_read ? own.before.ran_ns : -1};
}

void HostUse::step_ends(uint32_t serial) noexcept {
  OfThread& own = of_this_thread;
  if (own.step != serial || own.part != this || own.recording != recordings_ ||
      !is_on_.load(std::memory_order_acquire))
    return;
  own.step = kNoStep;
  own.end_ns = clock_->to_ns(read_ticks());
  own.is_end_read = own.is_read;
  if (own.is_read) own.by_end = Counts::read();
  const int64_t duration_ns = own.end_ns - own.begin_ns;
  const bool is_long = run_queue_.is_long(duration_ns);
  {
    const std::lock_guard lock(lock_);
    open_ = {};
    ended_ = serial;
    ended_ns_ = own.end_ns;
  }
  if (own.is_read) note(serial, own, is_long);
  note_pressure(serial, own.begin_ns, own.end_ns, is_long);
}

void HostUse::note(uint32_t serial, const OfThread& own, bool is_long) noexcept {
  const Counts &now = own.by_end, &before = own.before;
  const int64_t ran_ns = now.ran_ns - before.ran_ns;
  const int64_t off_ns = std::max(own.end_ns - own.begin_ns - ran_ns, int64_t{0});
  int64_t usual_ns = 0;
  {
    const std::lock_guard lock(lock_);
    if (!is_long) off_cpu_ns_.add(static_cast<uint64_t>(off_ns));
    if (is_long) usual_ns = static_cast<int64_t>(off_cpu_ns_.value());
  }
  if (!is_long && serial >= kFirstNoted && serial % kNotedEvery != 0) return;
  causes_.add_of_step(CauseKind::kComputing, serial, own.end_ns, ran_ns);
  const std::optional<int64_t> queued_ns = run_queue_.waited_ns();
  if (queued_ns && now.sleeps == before.sleeps)
    causes_.add_of_step(CauseKind::kSteal, serial, own.end_ns,
                        std::max(off_ns - *queued_ns, int64_t{0}));
  if (fault_ns_ > 0) {
    int64_t faults_ns = (now.minor - before.minor) * fault_ns_;
    const int64_t system_ns = now.system_ns - before.system_ns;
    if (system_ns >= std::max(kLeastSystemNs, faults_ns))
      faults_ns = std::min(system_ns, kMostFault * faults_ns);
    causes_.add_of_step(CauseKind::kPageFaults, serial, own.end_ns, faults_ns);
  }
  if (is_long)
    causes_.add_of_step(
        CauseKind::kDiskPages, serial, own.end_ns,
        std::clamp(off_ns - usual_ns, int64_t{0}, kMostDiskNs * (now.major - before.major)));
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
  of_this_thread.step = kNoStep;
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
