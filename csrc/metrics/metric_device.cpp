// SPDX-License-Identifier: Apache-2.0
#include "metrics/metric_device.h"

#include <algorithm>
#include <atomic>
#include <new>

namespace pig::metrics {

bool MetricDevice::Returned::is_published() const {
  const std::atomic_ref sequence(snapshot.host->sequence);
  return sequence.load(std::memory_order_acquire) == 2 * launches;
}

std::optional<MappedSnapshot> MetricDevice::take_snapshot(cuda::DriverError& error) {
  std::optional<MappedSnapshot> snapshot = reuse();
  // Another thread may take what was allocated here.
  while (!snapshot && allocate(error)) snapshot = reuse();
  return snapshot;
}

std::optional<MappedSnapshot> MetricDevice::reuse() {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(returned_.begin(), returned_.end(),
                                  [](const Returned& r) { return r.is_published(); });
  if (found == returned_.end()) return std::nullopt;
  const MappedSnapshot snapshot = found->snapshot;
  returned_.erase(found);
  new (snapshot.host) Snapshot{};
  return snapshot;
}

bool MetricDevice::allocate(cuda::DriverError& error) {
  void* memory = nullptr;
  error = {"cuMemHostAlloc",
           driver_.MemHostAlloc(&memory, kSnapshotsAtOnce * sizeof(Snapshot),
                                cuda::kHostAllocPortable | cuda::kHostAllocMapped)};
  if (error) return false;
  cuda::DevicePointer device_pointer = 0;
  error = {"cuMemHostGetDevicePointer",
           driver_.MemHostGetDevicePointer(&device_pointer, memory, 0)};
  if (error) return false;
  auto* const host = static_cast<Snapshot*>(memory);
  auto* const device = reinterpret_cast<Snapshot*>(device_pointer);
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < kSnapshotsAtOnce; ++i)
    returned_.push_back({{new (host + i) Snapshot{}, device + i}, 0});
  return true;
}

}  // namespace pig::metrics
