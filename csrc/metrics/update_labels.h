// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "hot/active_recording.h"
#include "hot/span.h"

namespace pig::metrics {

/// During which step each of the newest `kSize` updates was made. An update that is read back much
/// later has no label.
template <size_t kSize>
class UpdateLabels {
 public:
  /// Labels an update with the step that is open now.
  void set(uint64_t update) {
    const uint64_t step = open_step.load(std::memory_order_relaxed);
    labels_[update % kSize] = {update, active_epoch.load(std::memory_order_relaxed),
                               step == kNoOpenStep ? kNoStep : static_cast<uint32_t>(step)};
  }

  /// The serial number of the update's step in the recording that is active; kNoStep where there is
  /// none or it is not known.
  uint32_t step_of(uint64_t update) const {
    const Label& label = labels_[update % kSize];
    const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
    return epoch != 0 && label.update == update && label.epoch == epoch ? label.step : kNoStep;
  }

  void clear() { labels_ = {}; }

 private:
  struct Label {
    uint64_t update = 0;  ///< 0: none
    uint32_t epoch = 0;   ///< the recording
    uint32_t step = kNoStep;
  };

  std::array<Label, kSize> labels_{};
};

}  // namespace pig::metrics
