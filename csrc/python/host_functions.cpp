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
#include <string>
#include <system_error>
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

/// As answer_with_gil: Python may end the thread here while the interpreter ends.
void take_gil(std::atomic<uint32_t>& number) noexcept {
  number.store(static_cast<uint32_t>(gettid()));
  try {
    PyGILState_Release(PyGILState_Ensure());
  } catch (...) {
    for (;;) pause();
  }
}

/// Where a thread sleeps on which two readings agree; 0 if none do. On a busy machine each of them
/// may take a time slice, and there have to be some all the same.
uint64_t settled_address(const std::string& threads, const std::atomic<uint32_t>& number) {
  constexpr std::chrono::milliseconds kPatience{5}, kMostPatience{60};
  constexpr int kLeastLooks = 20;
  constexpr std::chrono::microseconds kBetween{50};
  uint64_t last = 0;
  const auto begin = steady_clock::now();
  for (int looks = 0;; ++looks) {
    const auto elapsed = steady_clock::now() - begin;
    if (elapsed > kMostPatience || (elapsed > kPatience && looks >= kLeastLooks)) return 0;
    std::this_thread::sleep_for(kBetween);
    char path[256], text[256];
    std::snprintf(path, sizeof path, "%.200s/%u/syscall", threads.c_str(), number.load());
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;  // it has not begun, or there is no such file
    const ssize_t count = read(file, text, sizeof text - 1);
    close(file);
    text[count > 0 ? count : 0] = '\0';
    const uint64_t address = sleeping_address(text);
    if (is_near(address, last)) return address;
    last = address;
  }
}

/// Where a thread sleeps that waits for the GIL: one is made to, while this one has it. 0 where
/// that can't be seen, or has no end.
uint64_t address_of_waiter(const std::string& threads) {
  std::atomic<uint32_t> number{0};
  std::thread waiter;
  try {
    const SignalsBlocked blocked;
    waiter = std::thread([&number] { take_gil(number); });
  } catch (const std::system_error&) {
    return 0;
  }
  const uint64_t address = settled_address(threads, number);
  const GilRelease released;
  waiter.join();
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
      "watch_host", [](const std::string& pressure) { parts().host_use.start(pressure); },
      "pressure"_a);
  module.def(
      "watch_gil",
      [](const std::string& threads) {
        const uint64_t address = gil_address(threads);
        if (address != 0) parts().host_use.watch_gil(threads, address);
        return address != 0;
      },
      "threads"_a);
}

}  // namespace pig
