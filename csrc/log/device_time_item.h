// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace pig {

/// The device times of a span, as they stand in a run file.
struct DeviceTimeItem {
  static constexpr uint64_t kUnfinished = 1;

  uint64_t where;  ///< the span's index, bits 0-39; the stream, bits 40-55; flags, bits 56-63
  int64_t begin_ns;
  int64_t duration_ns;
};
static_assert(sizeof(DeviceTimeItem) == 24);

/// A stream of a device, as it stands in a run file.
struct StreamItem {
  uint64_t handle;
  uint32_t device;
  uint32_t flags;
};
static_assert(sizeof(StreamItem) == 16);

/// One correlation of a device's clock with the run's, as it stands in a run file.
struct DeviceClockItem {
  uint32_t device;
  uint32_t pad;
  int64_t device_ns;
  int64_t run_ns;
  int64_t uncertainty_ns;
};
static_assert(sizeof(DeviceClockItem) == 32);

}  // namespace pig
