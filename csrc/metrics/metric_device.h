// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "cuda/driver.h"
#include "metrics/metric_kernel.h"

namespace pig::metrics {

/// Mapped host memory of one accumulator.
struct MappedSnapshot {
  Snapshot* host = nullptr;  ///< as the host sees it
  Snapshot* device = nullptr;
};

/// The number of the newest publication of which anything was written; 0: there is none.
unsigned newest_publication(const Snapshot& snapshot);

/// Copies a publication's state, where that is not too long, and how many updates were lost. What
/// it does not have is 0. False where not all of it is there.
bool read_publication(const Snapshot& snapshot, unsigned number, std::span<uint8_t> state,
                      U64& lost);

/// What the accumulators on one device share: its primary context, which is retained once, and
/// memory for their snapshots. Thread-safe. No lock is held during a call of the driver.
///
/// Kernels write a snapshot whenever they run, perhaps long after their accumulator is gone, and
/// nothing here waits for them. So the memory of an accumulator that is gone goes to the next one
/// as soon as each of its launches is seen to have published, which a launch that met another one
/// in its slot may never do. It is never given back to the driver: that would wait for the device.
/// There is as much of it, in portions of `kSnapshotsAtOnce`, as there ever were accumulators on
/// the device at one time, and besides for those whose updates were captured into a graph, which
/// may be replayed forever.
class MetricDevice {
 public:
  static constexpr int kSnapshotsAtOnce = 8;

  /// The context is retained already.
  MetricDevice(const cuda::Driver& driver, cuda::Context context, int processors)
      : driver_(driver), context_(context), processors_(processors) {}

  cuda::Context context() const { return context_; }
  int processors() const { return processors_; }

  /// A snapshot of no update. Calls the driver where there is none left; the context has to be
  /// current then. Nothing after an error.
  std::optional<MappedSnapshot> take_snapshot(cuda::DriverError& error);
  /// Takes one back after so many launches.
  void give_back(const MappedSnapshot& snapshot, U64 launches) {
    const std::lock_guard lock(mutex_);
    returned_.push_back({snapshot, launches});
  }

 private:
  struct Returned {
    MappedSnapshot snapshot;
    U64 launches;

    bool is_published() const;
  };

  std::optional<MappedSnapshot> reuse();
  bool allocate(cuda::DriverError& error);

  const cuda::Driver& driver_;
  const cuda::Context context_;
  const int processors_;
  std::mutex mutex_;
  std::vector<Returned> returned_;
};

}  // namespace pig::metrics
