// SPDX-License-Identifier: Apache-2.0
//
// Has the recorder see what threads wait for, and finds out how it can tell that one waits for the
// GIL.
#include <Python.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

#include "base/threads.h"
#include "python/bindings.h"
#include "python/gil_release.h"
#include "record/parts.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;
using std::chrono::steady_clock;

struct Waiter {
  std::atomic<uint32_t> number{0};  ///< of the thread, once it runs
  std::atomic<bool> has_waited{false};
};

void take_gil(Waiter& waiter) noexcept {
  waiter.number.store(static_cast<uint32_t>(gettid()));
  with_gil([] {});
  waiter.has_waited.store(true);
}

/// Where a thread sleeps on which two readings agree; 0 if none do. Some 0.2 ms, but on a busy
/// machine it may take long until the thread runs.
uint64_t stable_address(const std::string& threads, const Waiter& waiter) {
  constexpr std::chrono::milliseconds kPatience{60};
  constexpr std::chrono::microseconds kBetween{50};
  uint64_t last = 0;
  for (const auto until = steady_clock::now() + kPatience; steady_clock::now() < until;) {
    std::this_thread::sleep_for(kBetween);
    const uint32_t number = waiter.number.load();
    if (number == 0) {
      if (waiter.has_waited.load()) return 0;
      continue;
    }
    char path[256], text[256];
    std::snprintf(path, sizeof path, "%.200s/%u/syscall", threads.c_str(), number);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    // It need not wait where there is no GIL.
    if (file < 0 || waiter.has_waited.load()) {
      if (file >= 0) close(file);
      return 0;
    }
    const ssize_t count = read(file, text, sizeof text - 1);
    close(file);
    text[count > 0 ? count : 0] = '\0';
    const uint64_t address = sleeping_address(text);
    if (is_near(address, last)) return address;
    last = address;
  }
  return 0;
}

/// Where a thread sleeps that waits for the GIL: one is made to, while this one has it. 0 where
/// that can't be seen, or has no end.
uint64_t address_of_waiter(const std::string& threads) {
  Waiter waiter;
  std::thread thread;
  try {
    const SignalsBlocked blocked;
    thread = std::thread([&waiter] { take_gil(waiter); });
  } catch (const std::exception&) {  // no thread, or no memory
    return 0;
  }
  const uint64_t address = stable_address(threads, waiter);
  const GilRelease released;
  thread.join();
  return address;
}

/// The same for all threads; 0 where each has its own, as some C libraries have it.
uint64_t gil_address(const std::string& threads) {
  const uint64_t one = address_of_waiter(threads);
  return one != 0 && is_near(one, address_of_waiter(threads)) ? one : 0;
}

}  // namespace

void add_host_functions(py::module_& module) {
  module.def(
      "watch_host", [](const std::string& pressure) { parts().host_use.watch_use(pressure); },
      "pressure"_a);
  module.def(
      "watch_gil",
      [](const std::string& threads) {
        const uint64_t address = gil_address(threads);
        if (address != 0) parts().gil_watch.start(threads, address);
        return address != 0;
      },
      "threads"_a);
}

}  // namespace pig
