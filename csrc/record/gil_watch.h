// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "log/storage.h"
#include "record/gil_waits.h"
#include "record/harvester.h"
#include "record/host_use.h"
#include "record/part.h"

namespace pig {

/// Looks at steps that take long, for waits for the GIL: the kernel says in which system call a
/// thread waits, and those that wait for the GIL all sleep at the same address.
///
/// It looks on a thread of its own, which sleeps until the harvester, on one of its ticks, finds a
/// step that takes long. A thread that woke by itself, now and then, would cost more than all other
/// causes of slow steps together.
class GilWatch final : public Part {
 public:
  GilWatch(const HostUse& host_use, CauseLog& causes)
      : host_use_(host_use), waits_(causes, [this](ThreadTimes& times) { read_times(times); }) {}

  void reset(const Session& session) override { clock_ = &session.clock; }
  /// From now on long steps are looked at, if the use of the host is. `threads`: the folder of the
  /// process's threads in /proc; `gil_address`: where those sleep that wait for the GIL. With the
  /// GIL.
  void start(std::string threads, uint64_t gil_address);
  void tick() override;
  void close() override;
  void abandon() override;

 private:
  void live();
  /// Looks at the open step if it takes long. Returns when to come again; 0: when it is rung.
  std::chrono::nanoseconds look();
  Seen see(uint32_t thread);
  void read_times(ThreadTimes& times) const;

  const HostUse& host_use_;
  const Clock* clock_ = nullptr;
  Alarm alarm_;
  std::atomic<bool> has_thread_ = false;
  std::atomic<bool> stops_ = false;
  std::atomic<bool> is_resting_ = true;
  pthread_t thread_{};

  // Of the thread.
  std::string threads_;
  uint64_t gil_address_ = 0;
  GilWaits waits_;
  HighDescriptor file_;
  uint32_t file_of_ = 0;
};

}  // namespace pig
