// SPDX-License-Identifier: Apache-2.0
//
// Threads meet under one mutex. A call or a control holds it from its first line to its last, so
// the machine sees one thread at a time.
//
// A call is stuck when it enqueues on a full stream, or behind the driver's own lock. It then waits
// on `changed`, without the mutex, on the thread that made it and with whatever that thread holds:
// the interpreter's lock if the code under test did not release it. Whoever leaves the mutex
// signals `changed`, since anything that it did may have made room: a stuck call just tries again.
// So nothing here needs a list of who waits for what, and there is nothing to poll.
//
// How long a real stream's queue is, NVIDIA does not say; launches are known to block once about
// 1,024 entries are pending (forums.developer.nvidia.com/t/68937), each stream by itself. PyTorch's
// issue 109074 is what comes of it.
//
// A reset frees the threads that are stuck: their calls answer DEINITIALIZED, leave no trace in the
// new log, and have left the driver when the reset returns. A test whose only thread is stuck, or
// holds the interpreter's lock while it is, can't call it: after half a minute of real time a stuck
// call gives up, with the same answer, and that is a violation.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "simulated_calls.h"
#include "simulated_clock.h"
#include "simulated_machine.h"

namespace sim {

/// The one instance in the process. Its mutex guards all but the clock.
class SimulatedDriver {
 public:
  static constexpr double kStuckLimitS = 30;

  HostClock host;
  Machine machine{host, 1};
  Calls calls;
  /// Which others block while a call is stuck in an enqueue: none, all, or those of threads whose
  /// current context is of the same device.
  enum class DriverLock { kNone, kOne, kOfDevice };
  DriverLock driver_lock = DriverLock::kNone;
  /// In real time, after which a stuck call gives up.
  double stuck_limit_s = kStuckLimitS;

  static SimulatedDriver& instance();
  /// Whether it is another process than the one that reset it, in which CUDA does not work: the
  /// driver's calls answer NOT_INITIALIZED there.
  bool is_forked() const { return process_ != getpid(); }
  /// The calling thread's state. After a reset it is as that of a new thread.
  Thread& thread();
  void reset(int devices);

  /// How many threads are stuck.
  uint64_t blocked_calls() const { return blocked_; }
  /// Until exactly so many are. False when that has not come in time.
  bool wait_until_blocked(uint64_t least, uint64_t most, double timeout_s);

  /// Runs `body` under the mutex.
  template <typename Body>
  auto locked(Body body) {
    const Lock lock(*this);
    return body();
  }

  /// A call as a thread of the program makes it: `enter` once, and then `enqueue`, which may be
  /// stuck, until it answers anything but kStreamFull. `leave` sees what was answered; it is left
  /// out where a reset or the limit has freed the thread.
  template <typename Enter, typename Enqueue, typename Leave>
  int call(bool needs_lock, Enter enter, Enqueue enqueue, Leave leave) {
    Lock lock(*this);
    const int device = machine.current_device(thread());
    const auto may_enter = [&] { return !needs_lock || !is_locked(device); };
    if (!may_enter() && !wait(lock, may_enter)) return kDeinitialized;
    int result = enter();
    if (result == kSuccess) {
      result = enqueue();
      if (result == kStreamFull) {
        ++stuck_enqueues_[device];
        const bool alive = wait(lock, [&] { return (result = enqueue()) != kStreamFull; });
        --stuck_enqueues_[device];
        if (!alive) return kDeinitialized;
      }
    }
    leave(result);
    return result;
  }

 private:
  struct Lock {
    explicit Lock(SimulatedDriver& driver) : driver(driver), mutex(driver.mutex_) {}
    ~Lock() { driver.changed_.notify_all(); }
    SimulatedDriver& driver;
    std::unique_lock<std::mutex> mutex;
  };

  bool is_locked(int device) const {
    if (driver_lock == DriverLock::kNone) return false;
    return std::any_of(stuck_enqueues_.begin(), stuck_enqueues_.end(), [&](const auto& stuck) {
      return stuck.second != 0 && (driver_lock == DriverLock::kOne || stuck.first == device);
    });
  }

  /// The calling thread is stuck until `condition` has come true; false when a reset or the limit
  /// has come first.
  template <typename Condition>
  bool wait(Lock& lock, Condition condition) {
    const uint64_t epoch = epoch_;
    ++blocked_;
    blocked_changed_.notify_all();
    changed_.notify_all();  // the call may have moved the clock before it got stuck
    const auto begin = std::chrono::steady_clock::now();
    const auto limit = begin + std::chrono::nanoseconds(static_cast<int64_t>(stuck_limit_s * 1e9));
    bool in_time = true;
    bool come_true = false;
    while (in_time && epoch_ == epoch && !come_true) {
      in_time = changed_.wait_until(lock.mutex, limit) == std::cv_status::no_timeout;
      come_true = epoch_ == epoch && condition();
    }
    --blocked_;
    blocked_changed_.notify_all();
    if (epoch_ == epoch && !come_true)
      machine.add_violation("a call was stuck until its time was up: nobody made room");
    return come_true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable blocked_changed_;
  uint64_t blocked_ = 0;                    ///< threads in `wait`
  std::map<int, uint64_t> stuck_enqueues_;  ///< those of them that enqueue, by device
  uint64_t epoch_ = 1;                      ///< grows with each reset
  pid_t process_ = getpid();
};

}  // namespace sim
