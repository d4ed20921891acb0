// SPDX-License-Identifier: Apache-2.0
#include "record/harvester.h"

#include <signal.h>

#include <chrono>
#include <system_error>
#include <utility>

namespace pig {

constexpr std::chrono::milliseconds kTick{20};

void Harvester::start(std::function<void()> tick) {
  tick_ = std::move(tick);
  stop_requested_ = false;
  // Signals go to the program's own threads: the new thread inherits a full mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&thread_, nullptr, run, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0)
    throw std::system_error(error, std::generic_category(), "starting the harvester thread");
  pthread_setname_np(thread_, "pig-harvester");
  running_ = true;
}

void Harvester::stop() {
  if (!running_) return;
  {
    const std::lock_guard lock(mutex_);
    stop_requested_ = true;
  }
  condition_.notify_one();
  pthread_join(thread_, nullptr);
  running_ = false;
}

void* Harvester::run(void* self) {
  static_cast<Harvester*>(self)->loop();
  return nullptr;
}

void Harvester::loop() {
  std::unique_lock lock(mutex_);
  while (!stop_requested_) {
    condition_.wait_for(lock, kTick);
    lock.unlock();
    tick_();
    lock.lock();
  }
}

}  // namespace pig
