// SPDX-License-Identifier: Apache-2.0
#include "base/ticks.h"

#include <fstream>
#include <string>

namespace pig {
namespace {

uint64_t (*injected_function)() = nullptr;

uint64_t read_clock_gettime() { return static_cast<uint64_t>(read_clock_ns(CLOCK_MONOTONIC_RAW)); }

uint64_t read_injected() { return injected_function(); }

#if defined(__x86_64__)
/// The CPU promises a constant rate that does not stop, and the kernel has found no reason to
/// distrust it: it demotes the clocksource when cores disagree.
bool tsc_is_safe() {
  std::ifstream source("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  if (!(source >> name) || name != "tsc") return false;
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    line += ' ';
    return line.find(" constant_tsc ") != std::string::npos &&
           line.find(" nonstop_tsc ") != std::string::npos;
  }
  return false;
}
#endif

}  // namespace

TickKind tick_kind = TickKind::kClockGettime;
uint64_t (*tick_function)() = read_clock_gettime;

TickKind choose_tick_kind() {
  if (injected_function != nullptr) {
    tick_function = read_injected;
    return TickKind::kInjected;
  }
  tick_function = read_clock_gettime;
#if defined(__x86_64__)
  static const bool safe = tsc_is_safe();
  if (safe) return TickKind::kTsc;
#elif defined(__aarch64__)
  return TickKind::kCntvct;
#endif
  return TickKind::kClockGettime;
}

void inject_tick_function(uint64_t (*function)()) {
  injected_function = function;
  // Ticks are also read where nothing is recorded, and from no function that is gone.
  if (function == nullptr) tick_kind = choose_tick_kind();
}

}  // namespace pig
