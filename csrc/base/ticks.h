// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <time.h>

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/// For globals of the hot path: declared hidden they are reached without a detour over the global
/// offset table. (-fvisibility=hidden alone covers definitions only.)
#define PIG_HOT [[gnu::visibility("hidden")]]
#define PIG_LIKELY(x) __builtin_expect(!!(x), 1)
#define PIG_UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace pig {

/// Where the hot path reads its time. Chosen when a recording starts; constant while it runs.
enum class TickKind : int {
  kTsc,  ///< rdtsc; only where the kernel itself trusts it (clocksource tsc, constant and nonstop)
  kCntvct,        ///< the virtual counter of aarch64
  kClockGettime,  ///< CLOCK_MONOTONIC_RAW, already nanoseconds
  kInjected,      ///< nanoseconds from a test
};

PIG_HOT extern TickKind tick_kind;
PIG_HOT extern uint64_t (*tick_function)();

constexpr const char* kTickKindNames[] = {"tsc", "cntvct", "clock_gettime", "injected"};

/// The kind this machine should use. An injected function (tests) goes before everything else.
TickKind choose_tick_kind();

/// Replaces the clock for the recordings that start from now on; nullptr restores the machine's
/// own.
void inject_tick_function(uint64_t (*function)());

/// One of the kernel's clocks, in nanoseconds.
inline int64_t read_clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

inline uint64_t read_ticks() {
#if defined(__x86_64__)
  if (PIG_LIKELY(tick_kind == TickKind::kTsc)) return __rdtsc();
#elif defined(__aarch64__)
  if (PIG_LIKELY(tick_kind == TickKind::kCntvct)) {
    uint64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
  }
#endif
  return tick_function();
}

}  // namespace pig
