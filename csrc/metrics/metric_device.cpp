// SPDX-License-Identifier: Apache-2.0
#include "metrics/metric_device.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <new>

namespace pig::metrics {

namespace {

/// False where the word is not of that publication.
bool read_word(const Snapshot& snapshot, unsigned number, size_t word, U64& value) {
  U64 halves[2];
  for (size_t i = 0; i < 2; ++i) {
    const std::atomic_ref half(const_cast<U64&>(snapshot.halves[number % 2][2 * word + i]));
    halves[i] = half.load(std::memory_order_relaxed);
    if (halves[i] >> 32 != number) return false;
  }
  value = halves[1] << 32 | (halves[0] & 0xFFFFFFFFu);
  return true;
}

}  // namespace

unsigned newest_publication(const Snapshot& snapshot) {
  unsigned numbers[2];
  for (size_t i = 0; i < 2; ++i) {
    const std::atomic_ref half(const_cast<U64&>(snapshot.halves[i][0]));
    numbers[i] = static_cast<unsigned>(half.load(std::memory_order_relaxed) >> 32);
  }
  if (numbers[0] == 0 || numbers[1] == 0) return numbers[0] + numbers[1];
  return static_cast<int>(numbers[1] - numbers[0]) > 0 ? numbers[1] : numbers[0];
}

bool read_publication(const Snapshot& snapshot, unsigned number, std::span<uint8_t> state,
                      U64& lost) {
  constexpr size_t kStateWords = sizeof(State) / sizeof(U64);
  U64 sizes = 0;
  if (number == 0 || !read_word(snapshot, number, 0, sizes) ||
      !read_word(snapshot, number, 1, lost))
    return false;
  const size_t front = sizes & 0xFFFFFFFFu, words = front + (sizes >> 32);
  std::fill(state.begin(), state.end(), uint8_t{0});
  for (size_t i = 0; i < words; ++i) {
    U64 value = 0;
    if (!read_word(snapshot, number, Snapshot::kHead + i, value)) return false;
    const size_t at = (i < front ? i : kStateWords + i - front) * sizeof value;
    if (at + sizeof value <= state.size()) std::memcpy(&state[at], &value, sizeof value);
  }
  return true;
}

/// All that the last two launches write: the one before those had written when the last began.
bool MetricDevice::Returned::is_published() const {
  U64 lost = 0;
  const auto number = static_cast<unsigned>(launches);
  if (newest_publication(*snapshot.host) != number) return false;
  return (launches < 1 || read_publication(*snapshot.host, number, {}, lost)) &&
         (launches < 2 || read_publication(*snapshot.host, number - 1, {}, lost));
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
