// SPDX-License-Identifier: Apache-2.0
#include "record/gil_watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/threads.h"

namespace pig {
namespace {

constexpr std::chrono::milliseconds kShortestLook{1};
/// A step that goes on is looked at again after such a part of the time that it has taken.
constexpr int64_t kLooks = 64;
constexpr std::chrono::hours kUntilRung{1};

/// The clock of what a thread of this process has run (`pthread_getcpuclockid`, for its number).
clockid_t cpu_clock(uint32_t thread) { return static_cast<clockid_t>((~thread << 3) | 6); }

}  // namespace

void GilWatch::start(std::string threads, uint64_t gil_address) {
  if (has_thread_ || !host_use_.is_watching_use()) return;
  threads_ = std::move(threads);
  gil_address_ = gil_address;
  stops_.store(false, std::memory_order_relaxed);
  const SignalsBlocked blocked;
  const auto run = [](void* part) -> void* {
    static_cast<GilWatch*>(part)->live();
    return nullptr;
  };
  has_thread_ = pthread_create(&thread_, nullptr, run, this) == 0;
  if (has_thread_) pthread_setname_np(thread_, "pig-sampler");
}

void GilWatch::tick() {
  if (!has_thread_ || !is_resting_.load(std::memory_order_acquire)) return;
  const StepAtWork step = host_use_.open_step();
  if (step.serial != kNoStep && host_use_.is_long(clock_->to_ns(read_ticks()) - step.begin_ns))
    alarm_.ring();
}

void GilWatch::close() {
  stops_.store(true, std::memory_order_relaxed);
  alarm_.ring();
  if (has_thread_.exchange(false)) pthread_join(thread_, nullptr);  // it waits for nothing
  abandon();
}

void GilWatch::abandon() {
  has_thread_ = false;  // of the parent
  file_.close();
  file_of_ = 0;
}

void GilWatch::live() {
  while (!stops_.load(std::memory_order_relaxed)) {
    const uint32_t rings = alarm_.rings();
    const std::chrono::nanoseconds rest = look();
    is_resting_.store(rest == rest.zero(), std::memory_order_release);
    alarm_.sleep(rings, rest == rest.zero() ? kUntilRung : rest);
  }
  if (waits_.is_looking()) waits_.step_ends(clock_->to_ns(read_ticks()));
}

std::chrono::nanoseconds GilWatch::look() {
  const StepAtWork step = host_use_.open_step();
  const int64_t now_ns = clock_->to_ns(read_ticks());
  if (waits_.is_looking() && waits_.serial() != step.serial)
    waits_.step_ends(host_use_.end_of(waits_.serial()).value_or(now_ns));
  const int64_t elapsed_ns = now_ns - step.begin_ns;
  if (step.serial == kNoStep || !host_use_.is_long(elapsed_ns)) return {};
  waits_.look(step, now_ns, see(step.thread), read_clock_ns(cpu_clock(step.thread)));
  return std::max<std::chrono::nanoseconds>(kShortestLook,
                                            std::chrono::nanoseconds(elapsed_ns / kLooks));
}

Seen GilWatch::see(uint32_t thread) {
  char text[256];
  if (thread != file_of_) {
    std::snprintf(text, sizeof text, "%.200s/%u/syscall", threads_.c_str(), thread);
    file_ = HighDescriptor(open(text, O_RDONLY | O_CLOEXEC));
    file_of_ = thread;
  }
  if (is_near(sleeping_address(file_.read(text)), gil_address_)) return Seen::waiting_for_gil;
  return std::strncmp(text, "running", 7) == 0 ? Seen::ready : Seen::elsewhere;
}

void GilWatch::read_times(ThreadTimes& times) const {
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
