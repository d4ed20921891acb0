// SPDX-License-Identifier: Apache-2.0
#include "record/step.h"

#include <optional>

#include "cuda/device_timing.h"
#include "hot/nvtx_range.h"
#include "record/recorder.h"
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

/// The NVTX ranges of steps, whether or not they are recorded. The number of one that is not is
/// its own count.
class StepRanges {
 public:
  void begin(int64_t index) {
    set_nvtx_step(index);
    nvtx_push(name(), NvtxKind::kStep);
  }
  void end() {
    nvtx_pop(name());
    set_nvtx_step(-1);
  }
  int64_t next_unrecorded() { return unrecorded_++; }

 private:
  static const NvtxName& name() {
    static const NvtxName name = nvtx_name("step");
    return name;
  }

  int64_t unrecorded_ = 0;
};
StepRanges step_ranges;

StepTracker& steps() { return Recorder::instance().steps(); }

}  // namespace

int64_t begin_step() {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  const ThreadState* thread = epoch != 0 ? recording_thread(epoch) : nullptr;
  if (thread == nullptr) {
    if (nvtx_attached) step_ranges.begin(step_ranges.next_unrecorded());
    return kNotRecording;
  }
  const std::optional<uint32_t> serial = steps().begin(thread->serial());
  if (!serial) return kStepIsOpen;
  cuda::DeviceTiming::instance().step_begins();
  if (nvtx_attached) step_ranges.begin(steps().index_of(*serial));
  return static_cast<int64_t>(epoch & 0x7FFFFFFF) << 32 | (*serial + 1);
}

void add_step_item(int64_t token, double samples) {
  if (const auto serial = serial_of(token)) steps().add_item(*serial, samples);
}

void mark_step(int64_t token) {
  if (const auto serial = serial_of(token)) steps().mark(*serial);
}

void end_step(int64_t token, bool complete, bool at_mark) {
  if (token == kStepIsOpen) {
    count_drop(Drop::kNestedSteps);
    return;
  }
  if (nvtx_attached) step_ranges.end();
  if (const auto serial = serial_of(token)) {
    steps().end(*serial, complete, at_mark);
    cuda::DeviceTiming::instance().step_ends();
  }
}

void drop_step(int64_t token) {
  if (nvtx_attached) step_ranges.end();
  if (const auto serial = serial_of(token)) {
    steps().drop(*serial);
    cuda::DeviceTiming::instance().step_is_dropped();
  }
}

}  // namespace pig
