// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "cuda/device_timing.h"
#include "hot/active_recording.h"
#include "hot/nvtx_range.h"
#include "record/module_sampling.h"
#include "record/parts.h"
#include "record/recording_thread.h"

namespace pig {
namespace {

constexpr int64_t kNotRecording = 0;
constexpr int64_t kStepIsOpen = -1;

std::optional<uint32_t> serial_of(int64_t token) {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (token <= 0 || epoch == 0 || static_cast<uint32_t>(token >> 32) != (epoch & 0x7FFFFFFF))
    return std::nullopt;
  return static_cast<uint32_t>(token) - 1;
}

const NvtxName& step_name() {
  static const NvtxName name = nvtx_name("step");
  return name;
}

// The NVTX ranges of steps, whether or not they are recorded.
void begin_range(int64_t index) {
  set_nvtx_step(index);
  nvtx_push(step_name(), NvtxKind::kStep);
}
void end_range() {
  nvtx_pop(step_name());
  set_nvtx_step(-1);
}

BoundaryListener* listener() { return boundary_listener.load(std::memory_order_acquire); }

StepTracker& steps() { return parts().steps(); }

/// What the step has of readings comes to an end with it.
void end_readings(uint32_t serial, bool is_kept) {
  if (parts().is_scratch()) return;
  if (is_kept) {
    parts().host_use.step_ends(serial);
    parts().metrics.step_ends();
  } else {
    parts().host_use.step_is_dropped();
    parts().metrics.step_is_dropped();
  }
}

}  // namespace

int64_t begin_step(bool with_range) {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  const ThreadState* thread = epoch != 0 ? recording_thread(epoch) : nullptr;
  if (thread == nullptr) {
    if (with_range) begin_step_range(kNotRecording);
    return kNotRecording;
  }
  const std::optional<uint32_t> serial = steps().begin(thread->serial());
  if (!serial) return kStepIsOpen;
  cuda::DeviceTiming::instance().step_begins();
  const uint64_t step = static_cast<uint64_t>(thread->serial()) << 32 | *serial;
  if (const uint32_t flags = ModuleSampling::instance().step_begins(step))
    steps().add_flags(*serial, flags);
  if (BoundaryListener* heard = listener()) heard->step_begins(*serial);
  if (!parts().is_scratch()) parts().host_use.step_begins(*serial);
  const int64_t token = static_cast<int64_t>(epoch & 0x7FFFFFFF) << 32 | (*serial + 1);
  if (with_range) begin_step_range(token);
  return token;
}

void begin_step_range(int64_t token) {
  if (!nvtx_attached) return;
  static int64_t unrecorded = 0;
  const auto serial = serial_of(token);
  begin_range(serial ? steps().index_of(*serial) : unrecorded++);
}

void add_step_item(int64_t token, double samples) {
  if (const auto serial = serial_of(token)) steps().add_item(*serial, samples);
}

void note_step_update(int64_t token) {
  if (const auto serial = serial_of(token)) steps().note_update(*serial);
}

void end_step(int64_t token, bool complete, StepEnd when) {
  if (token == kStepIsOpen) {
    count_drop(Drop::kNestedSteps);
    return;
  }
  if (nvtx_attached) end_range();
  if (const auto serial = serial_of(token)) {
    steps().end(*serial, complete, when);
    end_readings(*serial, /*is_kept=*/true);
    cuda::DeviceTiming::instance().step_ends();
    ModuleSampling::instance().step_ends();
    if (BoundaryListener* heard = listener()) heard->step_ends();
  }
}

void no_step_follows() { steps().no_step_follows(); }

void drop_step(int64_t token, bool has_range) {
  if (token == kStepIsOpen) return;
  if (has_range && nvtx_attached) end_range();
  if (const auto serial = serial_of(token)) {
    steps().drop(*serial);
    end_readings(*serial, /*is_kept=*/false);
    cuda::DeviceTiming::instance().step_is_dropped();
    ModuleSampling::instance().step_is_dropped();
    if (BoundaryListener* heard = listener()) heard->step_is_dropped();
  }
}

}  // namespace pig
