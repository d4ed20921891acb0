// SPDX-License-Identifier: Apache-2.0
#include "record/run_queue_waits.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace pig {
namespace {

/// A step that begins so soon after the last one begins with what was read at its end.
constexpr int64_t kAtOnceNs = 10'000;
/// To update the budget takes as long as a very short step.
constexpr uint32_t kStepsPerUpdate = 16;
/// The first readings take far longer than all others, and don't count.
constexpr uint32_t kColdSteps = 3;

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
  // Of the last one that was read.
  int64_t end_ns = 0;
  std::optional<uint64_t> waited_by_end;
};

constinit thread_local RunQueueWaits::OfThread RunQueueWaits::of_this_thread;
const ThreadEnd RunQueueWaits::thread_end(thread_ends);

void RunQueueWaits::reset(const Session& session) {
  clock_ = &session.clock;
  budget_.reset(kBudget);
}

void RunQueueWaits::start(std::string path) {
  {
    const std::lock_guard lock(lock_);
    path_ = std::move(path);
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
}

void RunQueueWaits::step_begins(uint32_t serial) noexcept {
  if (!is_on_.load(std::memory_order_acquire)) return;
  OfThread& own = this_thread_of_it();
  own.step = serial;
  own.begin_ns = clock_->to_ns(read_ticks());
  own.cost_ns = 0;
  own.is_read = budget_.begin_step();
  if (!own.is_read) return;
  if (own.waited_by_end && own.begin_ns - own.end_ns < kAtOnceNs) {
    own.waited_before = own.waited_by_end;
  } else {
    own.waited_before = read(own);
    own.cost_ns = clock_->to_ns(read_ticks()) - own.begin_ns;
  }
}

void RunQueueWaits::step_ends(uint32_t serial) noexcept {
  OfThread& own = of_this_thread;
  if (own.step != serial || own.part != this || !is_on_.load(std::memory_order_acquire)) return;
  own.step = kNoStep;
  own.end_ns = clock_->to_ns(read_ticks());
  own.waited_by_end = own.is_read ? read(own) : std::nullopt;
  if (own.waited_before && own.waited_by_end && *own.waited_by_end >= *own.waited_before)
    series_.add_to(serial, "processor_wait_ns",
                   static_cast<double>(*own.waited_by_end - *own.waited_before));
  own.waited_before.reset();
  if (serial < kColdSteps || (!own.is_read && serial % kStepsPerUpdate != 0)) return;
  const int64_t cost_ns = own.cost_ns + clock_->to_ns(read_ticks()) - own.end_ns;
  const auto duration_ns = static_cast<uint64_t>(std::max(own.end_ns - own.begin_ns, int64_t{0}));
  budget_.end_step(duration_ns, static_cast<uint64_t>(std::max(cost_ns, int64_t{0})));
}

void RunQueueWaits::step_is_dropped() noexcept {
  if (std::exchange(of_this_thread.step, kNoStep) != kNoStep) budget_.drop_step();
}

RunQueueWaits::OfThread& RunQueueWaits::this_thread_of_it() noexcept {
  OfThread& own = of_this_thread;
  const std::lock_guard lock(lock_);
  if (own.part == this && own.recording == recordings_) return own;
  own = OfThread();
  own.part = this;
  own.recording = recordings_;
  File* const free =
      std::find_if(files_.begin(), files_.end(), [](const File& file) { return !file.is_taken; });
  if (free == files_.end() || !thread_end.set(&own)) return own;
  free->descriptor = HighDescriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  free->is_taken = true;
  own.file = free;
  return own;
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
  auto& own = *static_cast<OfThread*>(thread);
  const std::lock_guard lock(own.part->lock_);
  if (own.recording != own.part->recordings_ || own.file == nullptr) return;
  own.file->descriptor.close();
  own.file->is_taken = false;
}

}  // namespace pig
