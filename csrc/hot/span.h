// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace pig {

constexpr uint32_t kNoStep = 0xFFFFFFFFu;
constexpr uint32_t kNoPath = 0xFFFFFFFFu;

/// Set on a span that began on the thread that opened its step.
constexpr uint8_t kStepThread = 1;

/// Set on a span that was timed on the device; its times follow when they are known.
constexpr uint8_t kDeviceTimed = 2;

/// Where a span's time counts. The numbers stand in run files. Those in steps that were profiled,
/// and so were slower, count apart.
enum class Scope : uint32_t {
  kStep = 0,
  kOtherThreads = 1,
  kOutside = 2,
  kProfiledStep = 3,
  kProfiledOtherThreads = 4
};

/// Of a span that began in this step.
constexpr Scope scope_of(uint32_t step, uint8_t flags) {
  if (step == kNoStep) return Scope::kOutside;
  return (flags & kStepThread) != 0 ? Scope::kStep : Scope::kOtherThreads;
}

/// A finished span as the hot path leaves it in its thread's ring: 32 bytes, half a cache line.
/// Times are ticks. Durations have 56 bits, 320 days at 2.6 GHz; a path has 24.
struct RawSpan {
  uint64_t begin;
  uint64_t duration_flags;   ///< duration << 8 | flags
  uint64_t child_depth;      ///< time in children << 8 | depth >> 8
  uint64_t step_path_depth;  ///< step << 32 | path << 8 | depth & 255

  static RawSpan pack(uint64_t begin, uint64_t duration, uint64_t child, uint32_t step,
                      uint32_t path, uint32_t depth, uint8_t flags) {
    return {begin, duration << 8 | flags, child << 8 | depth >> 8,
            static_cast<uint64_t>(step) << 32 | static_cast<uint64_t>(path) << 8 | (depth & 255)};
  }

  uint64_t duration() const { return duration_flags >> 8; }
  uint64_t child() const { return child_depth >> 8; }
  uint8_t flags() const { return static_cast<uint8_t>(duration_flags); }
  uint32_t step() const { return static_cast<uint32_t>(step_path_depth >> 32); }
  uint32_t path() const { return static_cast<uint32_t>(step_path_depth >> 8) & 0xFFFFFFu; }
  uint32_t depth() const {
    return static_cast<uint32_t>((child_depth & 255) << 8 | (step_path_depth & 255));
  }
  Scope scope() const { return scope_of(step(), flags()); }
};
static_assert(sizeof(RawSpan) == 32);

/// A finished span on the run's own axis.
struct NanosecondSpan {
  int64_t begin;
  int64_t end;
  int64_t self;
};

/// Ends are converted, not durations: so a span's host time is exactly the difference of the two
/// columns.
inline NanosecondSpan to_nanoseconds(const Clock& clock, const RawSpan& span) {
  const int64_t begin = clock.to_ns(span.begin);
  const int64_t end = clock.to_ns(span.begin + span.duration());
  const int64_t child = clock.to_ns(span.begin + span.child()) - begin;
  return {begin, end, child < end - begin ? end - begin - child : 0};
}

}  // namespace pig
