// SPDX-License-Identifier: Apache-2.0
//
// Ranges in the NVTX domain "pyinstrument_gpu", shown by Nsight Systems: phases and steps, whether
// or not anything is recorded.
//
// With no tool attached each use costs a load, a test and a branch. A tool is attached when it gave
// us a domain; nvtxDomainIsEnabled is not asked, because some versions of Nsight Systems answer 0
// while they record.
//
// Nsight draws ranges that were pushed and popped as nested bars on their thread, so that is what
// phases are. But a pop ends whatever is on top. So each thread keeps a list of its open ranges:
// when one closes under others, those are popped with it and go on as start/end ranges, which may
// end in any order. gpu_phase.scope uses start/end ranges from the beginning.
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <string>

#include "base/ticks.h"

namespace pig {

/// What a range shows: a registered string, and a phase's colour, which depends on the name alone.
struct NvtxName {
  nvtxStringHandle_t message;
  uint32_t color;
};

enum class NvtxKind : uint32_t { kPhase = 1, kStep = 2, kMetric = 3 };

PIG_HOT extern bool nvtx_attached;
/// A tool is attached, and ranges are wanted.
PIG_HOT extern bool nvtx_active;

/// Looks for a tool, once. `thread_name` gives the calling thread's name, for a thread's first
/// range.
void start_nvtx(std::string (*thread_name)());
/// Has no effect where NVTX_DISABLE is set.
void set_nvtx_enabled(bool enabled);

NvtxName nvtx_name(const std::string& name);

/// The number that ranges carry as payload: of the step that is open, or -1.
void set_nvtx_step(int64_t step);

// The ways when a tool is attached.
void push_nvtx_range(const NvtxName& name, NvtxKind kind) noexcept;
void pop_nvtx_range(const NvtxName& name) noexcept;
nvtxRangeId_t start_nvtx_range(const NvtxName& name) noexcept;
void end_nvtx_range(nvtxRangeId_t range) noexcept;

/// A mark with a number, for a reading of metrics.
void mark_nvtx_value(const std::string& name, double value) noexcept;

inline void nvtx_push(const NvtxName& name, NvtxKind kind = NvtxKind::kPhase) noexcept {
  if (PIG_UNLIKELY(nvtx_active)) push_nvtx_range(name, kind);
}

/// Ends the calling thread's innermost range of this name.
inline void nvtx_pop(const NvtxName& name) noexcept {
  // Also where ranges are not wanted any more: it may have begun before.
  if (PIG_UNLIKELY(nvtx_attached)) pop_nvtx_range(name);
}

/// A range that may end on another thread and in any order; 0 is none.
inline nvtxRangeId_t nvtx_start(const NvtxName& name) noexcept {
  return PIG_UNLIKELY(nvtx_active) ? start_nvtx_range(name) : 0;
}

inline void nvtx_end(nvtxRangeId_t range) noexcept {
  if (PIG_UNLIKELY(range != 0)) end_nvtx_range(range);
}

}  // namespace pig
