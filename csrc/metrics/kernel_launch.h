// SPDX-License-Identifier: Apache-2.0
//
// Updates on a CUDA device: one kernel on the caller's stream, and a snapshot in host memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "metrics/kernel_store.h"
#include "metrics/metric_kernel.h"

namespace pig::metrics {

/// What the host decides about one launch.
struct LaunchShape {
  RowsBy rows_by = RowsBy::kBlock;
  unsigned blocks = 1;
};

/// By the number of classes and how they lie; `processors` is the device's number of
/// multiprocessors.
LaunchShape shape_of(const Batch& batch, int processors);

/// How many blocks read elements, of which a thread takes `kElementsAtOnce`; no more than run at
/// once.
unsigned blocks_of_elements(I64 elements, int at_once);

/// Whether what is enqueued on a stream now becomes part of a graph. Never of the legacy default
/// stream, and asking about that one is an error while another one is captured.
inline bool captures(const cuda::Driver& driver, cuda::Stream stream) {
  cuda::CaptureStatus status = cuda::kNotCapturing;
  return stream != nullptr && driver.StreamIsCapturing(stream, &status) == cuda::kSuccess &&
         status != cuda::kNotCapturing;
}

/// What tells a stream from all others, as its handle does but for the per-thread default stream.
cuda::Stream identity_of(cuda::Stream stream);

/// Where an update goes.
struct Destination {
  State* state;
  Scratch* scratch;  ///< the weights of the classes lie behind it
  int device;
  cuda::Stream stream;
  unsigned scalars = 0;       ///< running values in use
  unsigned matrix_words = 0;  ///< of the confusion matrix, as many as readings have
};

enum class Launched { kNot, kOnStream, kIntoGraph };

/// One accumulator on one device. Thread-safe.
///
/// It waits for nothing itself, not even for kernels that are being loaded, but an enqueue by the
/// driver blocks while the stream is full: for as long as the device takes, perhaps forever. No
/// lock is held during a call of the driver, so other threads' launches don't wait for that one.
/// Mapped host memory for the snapshot is taken at the first update outside a capture.
class KernelLauncher {
 public:
  explicit KernelLauncher(KernelStore& store = KernelStore::instance()) : store_(store) {}
  ~KernelLauncher();
  KernelLauncher(const KernelLauncher&) = delete;
  KernelLauncher& operator=(const KernelLauncher&) = delete;

  /// Does an update, which is named by what its kernel takes: `launch` of it is filled in here. If
  /// nothing was launched, the caller does the update otherwise; `error()` says why no launch will
  /// be made any more, and is empty where one may be later.
  template <typename Parameters>
  Launched launch(Parameters update, const Destination& to);

  /// Whether any launch went into a graph.
  bool was_captured() const { return was_captured_.load(std::memory_order_relaxed); }

  /// Copies the newest whole publication, and how many updates the device has lost; false while
  /// there is none, and after an error.
  bool read(std::vector<uint8_t>& state, U64& lost) const;
  std::string error() const { return failed_.load(std::memory_order_acquire) ? error_ : ""; }

 private:
  const Kernels* ready(const Destination& to);
  bool prepare(int ordinal, cuda::Stream stream);
  bool fail(std::string error);
  bool fail(const cuda::DriverError& error);
  int slot_of(cuda::Stream stream, bool is_captured);

  KernelStore& store_;
  /// Written once, under the lock, before `is_prepared_`.
  const cuda::Driver* driver_ = nullptr;
  int ordinal_ = -1;
  std::shared_ptr<MetricDevice> device_;
  MappedSnapshot snapshot_;
  std::atomic<bool> is_prepared_{false};

  std::atomic<const Kernels*> kernels_{nullptr};
  std::atomic<const Snapshot*> readable_{nullptr};
  std::atomic<bool> was_captured_{false};
  std::atomic<U64> launches_{0};  ///< outside captures

  std::mutex mutex_;
  unsigned generation_ = 0;
  int streams_ = 0;  ///< how many have a slot
  std::array<cuda::Stream, kSlots> stream_of_slot_{};
  int next_slot_ = 0;  ///< for a stream that has none
  std::atomic<bool> failed_{false};
  std::string error_;  ///< written once, before `failed_`
};

}  // namespace pig::metrics
