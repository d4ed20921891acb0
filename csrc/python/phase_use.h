// SPDX-License-Identifier: Apache-2.0
//
// What entering and leaving a phase does: its NVTX range, whether or not anything is recorded, and
// a frame on the calling thread's stack when something is. Nothing here raises.
#pragma once

#include <cstdint>

#include "hot/nvtx_range.h"
#include "hot/thread_state.h"
#include "python/caller.h"
#include "python/phase_type.h"

namespace pig {

// Not inlined: what is done while nothing is recorded then saves no registers.
template <Use use>
[[gnu::noinline]] void record_begin(uint32_t epoch, uint32_t phase) noexcept;
template <Use use>
[[gnu::noinline]] void record_end(uint32_t epoch, uint32_t phase) noexcept;

template <Use use>
void enter_phase(const Phase& phase) noexcept {
  nvtx_push(phase.nvtx);
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch != 0) record_begin<use>(epoch, phase.id);
}

template <Use use>
void exit_phase(const Phase& phase) noexcept {
  nvtx_pop(phase.nvtx);
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch != 0) record_end<use>(epoch, phase.id);
}

// A token names a frame of a thread of a recording: epoch 16 bits, thread 16, frame 32. It is 0
// when no frame was opened.

uint64_t begin_token(const Phase& phase) noexcept;

enum class Closing { kEnd, kCancel };

/// Also for a frame that was begun on another thread. NVTX ranges are the caller's business.
void end_token(uint64_t token, Closing closing) noexcept;

/// The calling thread's frame becomes one of another phase. One of another thread keeps its own.
void rename_token(uint64_t token, const Phase& phase) noexcept;

}  // namespace pig
