// SPDX-License-Identifier: Apache-2.0
//
// Updates on a CUDA device: one kernel on the caller's stream, and a snapshot in host memory.
#pragma once

#include <array>
#include <cstdint>
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

/// One accumulator on one device. Calls come one at a time.
///
/// It never waits, for kernels that are not loaded yet neither. Mapped host memory for the snapshot
/// is taken at the first update outside a capture, and kept until the process ends: a kernel that
/// still runs may write it.
class KernelLauncher {
 public:
  explicit KernelLauncher(KernelStore& store = KernelStore::instance()) : store_(store) {}

  /// Whether the launch was made. If not, the caller does the update otherwise; `error()` says why
  /// no launch will be made any more, and is empty where one may be later.
  bool update(const Batch& batch, State* state, Scratch* scratch, int device, cuda::Stream stream);
  bool update_scalar(const void* value, Format format, double number, int slot, State* state,
                     Scratch* scratch, I64 confusion_classes, int device, cuda::Stream stream);

  /// Copies the newest whole snapshot; false while there is none, or one is being written, and
  /// after an error.
  bool read(std::vector<uint8_t>& bytes) const;

  const std::string& error() const { return error_; }

 private:
  bool ready(int device, cuda::Stream stream);
  bool prepare(int device, cuda::Stream stream);
  bool prepare_in(cuda::Context context, int device, cuda::Stream stream);
  bool launch(cuda::Kernel kernel, unsigned blocks, cuda::Stream stream, void* parameters);
  bool fail(const char* call, int result);
  unsigned next_generation();
  int slot_of(cuda::Stream stream);

  KernelStore& store_;
  const cuda::Driver* driver_ = nullptr;
  const Kernels* kernels_ = nullptr;
  cuda::Context context_ = nullptr;
  int device_ = -1;
  int processors_ = 0;
  Snapshot* snapshot_ = nullptr;         ///< as the host sees it
  Snapshot* device_snapshot_ = nullptr;  ///< as the device does
  unsigned generation_ = 0;
  std::array<cuda::Stream, kSlots> streams_{};  ///< whose updates have the slot of that index
  int next_slot_ = 0;                           ///< for a stream that has none
  std::string error_;
};

}  // namespace pig::metrics
